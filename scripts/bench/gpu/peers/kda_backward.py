"""The backward of flash-linear-attention. What is timed is the call of autograd; the forward runs before. It computes the
forward's intermediates again, or saves them."""

import torch

from kda import VERSIONS, fla, forward, in_float32
from peer import serve

OPERANDS = ("q", "k", "v", "g", "beta", "initialState", "aLog", "dtBias")


def leaves(inputs, options):
    """All inputs, and those that get a gradient alone."""
    tensors = in_float32(inputs, options)
    operands = {name: tensors[name].detach().requires_grad_() for name in OPERANDS}
    return {**tensors, **operands}, tuple(operands.values())


def prepare(keep):
    def prepare_backward(inputs, options):
        tensors, operands = leaves(inputs, options)
        before = torch.cuda.memory_allocated()
        with torch.enable_grad():
            results = forward(tensors, options, disable_recompute=keep)()
        made = torch.cuda.memory_allocated() - before
        gradients = (tensors["dOut"], tensors["dFinalState"])

        def call():
            return torch.autograd.grad(results, operands, gradients, retain_graph=True)

        call.retained = made - sum(result.nbytes for result in results)
        return call

    return prepare_backward


def both_ways(prepare):
    return {"flash-linear-attention": prepare(False), "flash-linear-attention saving": prepare(True)} if fla else {}


if __name__ == "__main__":
    serve(both_ways(prepare), VERSIONS)
