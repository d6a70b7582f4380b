"""A step of training of flash-linear-attention: forward and backward."""

import torch

from kda import VERSIONS, forward
from kda_backward import both_ways, leaves
from peer import serve


def prepare(keep):
    def prepare_step(inputs, options):
        tensors, operands = leaves(inputs, options)
        run = forward(tensors, options, disable_recompute=keep)
        gradients = (tensors["dOut"], tensors["dFinalState"])

        def call():
            with torch.enable_grad():
                results = run()
            return torch.autograd.grad(results, operands, gradients)

        return call

    return prepare_step


if __name__ == "__main__":
    serve(both_ways(prepare), VERSIONS)
