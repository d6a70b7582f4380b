"""Kimi Delta Attention of flash-linear-attention where it is installed, as a layer calls it. The first call of a shape compiles
and tunes, for more than half a minute: FLA_CACHE_MODE, FLA_CONFIG_DIR and TRITON_CACHE_DIR are there to keep what it finds."""

import torch

from peer import serve

try:
    import fla
    from fla.ops.kda import chunk_kda
except ImportError:
    fla = None


def forward(inputs, options, **more):
    """The arguments in the dtypes that it wants, and the call."""
    q, k, v, g, beta = (inputs[name] for name in ("q", "k", "v", "g", "beta"))
    a_log, bias, state = (inputs[name] for name in ("aLog", "dtBias", "initialState"))
    cu_seqlens = torch.tensor(options["cuSeqlens"], device=q.device) if "cuSeqlens" in options else None
    bound = options.get("lowerBound")

    def call():
        return chunk_kda(
            q, k, v, g, beta, A_log=a_log, dt_bias=bias, initial_state=state, output_final_state=True,
            use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True,
            safe_gate=bound is not None, lower_bound=bound, state_v_first=True, cu_seqlens=cu_seqlens, **more,
        )  # fmt: skip

    return call


def in_float32(inputs):
    """The inputs with those in float32 that have to be, dt_bias as one row."""
    converted = {name: inputs[name].float() for name in ("aLog", "initialState", "dFinalState") if name in inputs}
    return {**inputs, **converted, "dtBias": inputs["dtBias"].float().flatten()}


def prepare(inputs, options):
    call = forward(in_float32(inputs), options)
    return lambda: call()[0]  # the final state is float32, and not compared


VERSIONS = {"flash-linear-attention": fla.__version__} if fla else {}

if __name__ == "__main__":
    serve({"flash-linear-attention": prepare} if fla else {}, VERSIONS)
