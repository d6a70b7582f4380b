"""Errors of flash-linear-attention against float64 on the inputs of test/gpu/kda.accuracy.test.ts, as JSON: the bounds of
that test. Heads are doubled, since kernels are tuned for 16 (tune_kda.py), and the first of them are looked at."""

import json

import numpy as np
import torch

import kda

SEED = 1
POOL_SIZE = 2**20 + 7
T, HEADS, DIM, LOWER_BOUND = 1024, 8, 128, -5
SHIFTS = {"weak": -4, "random": 0, "saturated": 4}
GRADIENTS = {"dq": "q", "dk": "k", "dv": "v", "dg": "g", "dbeta": "beta", "dInitialState": "initialState",
             "dALog": "aLog", "dDtBias": "dtBias"}  # fmt: skip


def normal_numbers(label):
    """What test/support/random.ts gives: mulberry32, then Box and Muller."""
    mask = np.uint64(2**32 - 1)

    def multiply(x, y):
        return (x * y) & mask

    state = SEED
    for char in label:
        state = ((state ^ ord(char)) * 0x9E3779B1) & (2**32 - 1)
    steps = np.arange(1, 2 * POOL_SIZE + 1, dtype=np.uint64)
    a = (np.uint64(state) + multiply(steps, np.uint64(0x6D2B79F5))) & mask
    t = multiply(a ^ (a >> np.uint64(15)), a | np.uint64(1))
    t ^= (t + multiply(t ^ (t >> np.uint64(7)), t | np.uint64(61))) & mask
    uniform = (t ^ (t >> np.uint64(14))).astype(np.float64) / 2**32
    first, second = uniform[0::2], uniform[1::2]
    return np.float32(np.sqrt(-2 * np.log(1 - first)) * np.cos(2 * np.pi * second))


class Pool:
    """test/support/cuda.ts."""

    def __init__(self, label):
        self.numbers, self.at = normal_numbers(label), 0

    def draw(self, *shape, dtype=torch.bfloat16):
        size = int(np.prod(shape))
        places = (self.at + np.arange(size)) % POOL_SIZE
        self.at = (self.at + size) % POOL_SIZE
        return torch.from_numpy(self.numbers[places].reshape(shape)).cuda().to(dtype)


def draw_case(pool, shift):
    """In the order of drawKdaTwins; the gate's input again, shifted."""
    row, state = (1, T, HEADS, DIM), (1, HEADS, DIM, DIM)
    inputs = {name: pool.draw(*row) for name in ("q", "k", "v")}
    pool.draw(*row)
    inputs |= {"beta": pool.draw(*row[:3]), "dOut": pool.draw(*row)}
    inputs |= {name: pool.draw(*state, dtype=torch.float32) for name in ("initialState", "dFinalState")}
    inputs["aLog"] = pool.draw(HEADS, dtype=torch.float32) / 2
    inputs["dtBias"] = pool.draw(HEADS, DIM, dtype=torch.float32)
    return inputs | {"g": (pool.draw(*row, dtype=torch.float32) + shift).bfloat16()}


def in_float64(inputs):
    """docs/kda.md, section 1, token by token."""
    q, k, v, g, beta, state, a_log, bias = (
        inputs[name] for name in ("q", "k", "v", "g", "beta", "initialState", "aLog", "dtBias")
    )
    q, k = (x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for x in (q, k))
    decay = (LOWER_BOUND * torch.sigmoid(a_log.exp()[:, None] * (g + bias))).exp()
    beta, state, out = torch.sigmoid(beta), state[0], []
    for t in range(T):
        state = decay[0, t, :, :, None] * state
        error = v[0, t] - torch.einsum("hk,hkv->hv", k[0, t], state)
        state = state + torch.einsum("hk,hv->hkv", beta[0, t, :, None] * k[0, t], error)
        out.append(torch.einsum("hk,hkv->hv", q[0, t], state) * DIM**-0.5)
    return torch.stack(out)[None], state[None]


def results_of(function, inputs):
    leaves = {name: inputs[name].detach().requires_grad_() for name in GRADIENTS.values()}
    out, state = function({**inputs, **leaves})
    gradients = torch.autograd.grad((out, state), list(leaves.values()), (inputs["dOut"], inputs["dFinalState"]))
    return {"out": out, "finalState": state, **dict(zip(GRADIENTS, gradients))}


def of_fla(inputs):
    head_axis = {"aLog": 0, "dtBias": 0, "initialState": 1, "dFinalState": 1}
    states = ("initialState", "dFinalState")
    doubled = {name: torch.cat([x, x], head_axis.get(name, 2)) for name, x in inputs.items()}
    turned = {name: x.mT.contiguous() if name in states else x for name, x in doubled.items()}
    results = results_of(lambda given: kda.forward(given, {"lowerBound": LOWER_BOUND})(), turned)
    first = {name: x.narrow({"dALog": 0, "dDtBias": 0, "finalState": 1, "dInitialState": 1}.get(name, 2), 0, HEADS)
             for name, x in results.items()}  # fmt: skip
    return {name: x.mT if name in ("finalState", "dInitialState") else x for name, x in first.items()}


def main():
    errors = {}
    for title, shift in SHIFTS.items():
        inputs = draw_case(Pool(f"accuracy of KDA, {title} decay"), shift)
        expected = results_of(in_float64, {name: x.double() for name, x in inputs.items()})
        actual = of_fla(inputs)
        errors[title] = {
            name: float(f"{((actual[name].double() - x).norm() / x.norm()).item():.3g}") for name, x in expected.items()
        }
    print(json.dumps({"versions": kda.VERSIONS, "errors": errors}))


if __name__ == "__main__":
    main()
