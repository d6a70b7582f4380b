"""The backward of the implementations in attention.py. What is timed is the call of autograd; the forward runs before."""

import torch

from attention import IMPLEMENTATIONS, VERSIONS
from peer import serve


def backward(prepare):
    def prepare_backward(inputs, options):
        operands = {name: inputs[name].detach().requires_grad_() for name in ("q", "k", "v")}
        with torch.enable_grad():
            out = prepare(operands, options)()
        return lambda: torch.autograd.grad(out, tuple(operands.values()), inputs["dOut"], retain_graph=True)

    return prepare_backward


if __name__ == "__main__":
    serve({name: backward(prepare) for name, prepare in IMPLEMENTATIONS.items()}, VERSIONS)
