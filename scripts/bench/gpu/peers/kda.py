"""Kimi Delta Attention as a layer calls it, of flash-linear-attention and of FlashKDA where they are installed. The first call
of a shape in flash-linear-attention compiles and tunes, for more than half a minute: tune_kda.py does that beforehand."""

import os

import torch

from peer import Unsupported, serve

os.environ["FLA_FLASH_KDA"] = "0"  # else it calls FlashKDA itself

try:
    import fla
    from fla.ops.kda import chunk_kda
except ImportError:
    fla = None
try:
    import flash_kda
except ImportError:
    flash_kda = None


def in_float32(inputs, options):
    """The inputs with those in float32 that have to be, and the gate's with their moments."""
    names, moments = ("aLog", "dtBias", "initialState", "dFinalState"), options.get("moments", {})
    converted = {name: inputs[name].float() for name in names if name in inputs}
    for name, (mean, spread, least, most) in moments.items():
        converted[name] = (mean + spread * converted[name]).clamp(least, most)
    return {**inputs, **converted}


def offsets(inputs, options):
    return torch.tensor(options["cuSeqlens"], device=inputs["q"].device) if "cuSeqlens" in options else None


def forward(inputs, options, **more):
    """What calls flash-linear-attention, given inputs in the dtypes that it wants."""
    q, k, v, g, beta = (inputs[name] for name in ("q", "k", "v", "g", "beta"))
    a_log, bias, state = (inputs[name] for name in ("aLog", "dtBias", "initialState"))
    cu_seqlens, bound = offsets(inputs, options), options.get("lowerBound")

    def call():
        return chunk_kda(
            q, k, v, g, beta, A_log=a_log, dt_bias=bias.flatten(), initial_state=state, output_final_state=True,
            use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True,
            safe_gate=bound is not None, lower_bound=bound, state_v_first=True, cu_seqlens=cu_seqlens, **more,
        )  # fmt: skip

    return call


def prepare(inputs, options):
    return forward(in_float32(inputs, options), options)


def prepare_flash_kda(inputs, options):
    if "lowerBound" not in options:
        raise Unsupported("a gate without a bound")
    tensors = in_float32(inputs, options)
    q, k, v, g, beta = (tensors[name] for name in ("q", "k", "v", "g", "beta"))
    a_log, bias, state = (tensors[name] for name in ("aLog", "dtBias", "initialState"))
    cu_seqlens, scale = offsets(inputs, options), q.shape[-1] ** -0.5

    def call():
        out, final_state = torch.empty_like(v), torch.empty_like(state)
        flash_kda.fwd(
            q, k, v, g, beta, scale, out, a_log, bias, options["lowerBound"], state, final_state, cu_seqlens
        )  # fmt: skip
        return out, final_state

    return call


VERSIONS = {"flash-linear-attention": fla.__version__} if fla else {}

if __name__ == "__main__":
    serve(
        {
            **({"flash-linear-attention": prepare} if fla else {}),
            **({"FlashKDA": prepare_flash_kda} if flash_kda else {}),
        },
        VERSIONS,
    )
