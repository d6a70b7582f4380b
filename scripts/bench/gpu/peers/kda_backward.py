"""The backward of kda.py. What is timed is the call of autograd; the forward runs before. It computes the forward's intermediates
again, or keeps them."""

import torch

from kda import VERSIONS, fla, forward, in_float32
from peer import serve

OPERANDS = ("q", "k", "v", "g", "beta", "aLog", "dtBias", "initialState")


def prepare(keep):
    def prepare_backward(inputs, options):
        tensors = in_float32(inputs)
        operands = {name: tensors[name].detach().requires_grad_() for name in OPERANDS}
        before = torch.cuda.memory_allocated()
        with torch.enable_grad():
            results = forward(operands, options, disable_recompute=keep)()
        made = torch.cuda.memory_allocated() - before
        gradients = (tensors["dOut"], tensors["dFinalState"])

        def call():
            return torch.autograd.grad(results, tuple(operands.values()), gradients, retain_graph=True)[:5]

        call.retained = made - sum(result.nbytes for result in results)
        return call

    return prepare_backward


if __name__ == "__main__":
    ways = {"flash-linear-attention": prepare(False), "flash-linear-attention keeping": prepare(True)}
    serve(ways if fla else {}, VERSIONS)
