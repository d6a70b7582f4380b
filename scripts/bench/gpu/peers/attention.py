"""Attention as PyTorch runs it, through cuDNN and through FlashAttention-2, and FlashAttention-3 where it is installed."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from peer import Unsupported, serve

try:
    import flash_attn_interface
except ImportError:
    flash_attn_interface = None


def through(backend):
    def prepare(inputs, options):
        # PyTorch's order is [B, H, S, D]; the memory stays as it is.
        q, k, v = (inputs[name].transpose(1, 2) for name in ("q", "k", "v"))
        grouped = q.shape[1] != k.shape[1]

        def call():
            with sdpa_kernel(backend):
                out = scaled_dot_product_attention(q, k, v, is_causal=options["causal"], enable_gqa=grouped)
            return out.transpose(1, 2)

        return call

    return prepare


def flash_attention_3(inputs, options):
    if inputs["q"].shape[-1] > 256:
        raise Unsupported("head dimension")

    def call():
        out = flash_attn_interface.flash_attn_func(inputs["q"], inputs["k"], inputs["v"], causal=options["causal"])
        return out[0] if isinstance(out, tuple) else out

    return call


IMPLEMENTATIONS = {
    "cuDNN": through(SDPBackend.CUDNN_ATTENTION),
    "FlashAttention-2": through(SDPBackend.FLASH_ATTENTION),
    **({"FlashAttention-3": flash_attention_3} if flash_attn_interface else {}),
}
VERSIONS = {"cudnn": torch.backends.cudnn.version()}

if __name__ == "__main__":
    serve(IMPLEMENTATIONS, VERSIONS)
