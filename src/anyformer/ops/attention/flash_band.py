"""Flash attention under a band: a token sees a number of tokens before and after it, in rows or in packed documents.

torch's own kernel skips what lies outside the band. `varlen_attn` calls the same kernel through Python, forward and
backward, which takes longer than a short window; here autograd calls it from C++.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from anyformer.core.frame import DocumentBounds
from anyformer.core.masks import Band

_HALF = (torch.bfloat16, torch.float16)


def fits_flash(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """True: the kernel supports the device, the dtype and the memory layout."""
    if q.device.type != "cuda" or q.dtype not in _HALF or q.shape[-1] % 8 or q.shape[-1] > 256:
        return False
    uniform = all(x.dtype == q.dtype and x.stride(-1) == 1 for x in (q, k, v))
    return uniform and torch.version.hip is None and torch.cuda.get_device_capability(q.device)[0] >= 8


def flash_band(
    q: Float[Tensor, "*n h c"],
    k: Float[Tensor, "*n g c"],
    v: Float[Tensor, "*n g c"],
    band: Band,
    scale: float,
    documents: DocumentBounds | None = None,
) -> Float[Tensor, "*n h c"]:
    """Attention in rows [b t h c], or in concatenated documents [n h c]. Groups of query heads may share a key head."""
    bounds, longest = (None, q.shape[1]) if documents is None else documents
    back, ahead = (-1 if bound is None else bound for bound in band)
    y: Tensor = torch.ops.aten._flash_attention_forward.default(
        q,
        k,
        v,
        bounds,
        bounds,
        longest,
        longest,
        dropout_p=0.0,
        is_causal=False,  # window_size_right=0 is the causal form
        return_debug_mask=False,
        scale=scale,
        window_size_left=back,
        window_size_right=ahead,
    )[0]
    return y
