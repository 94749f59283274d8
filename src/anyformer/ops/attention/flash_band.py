"""Flash attention under a band: a token sees so many before it and so many after it, in rows or in packed documents.

torch's own kernel, which skips what lies outside the band. `varlen_attn` reaches the same one through Python, forward
and backward, and a short window has to wait for that; here autograd calls it from C++.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from anyformer.core.frame import Documents
from anyformer.core.masks import Band

_HALF = (torch.bfloat16, torch.float16)


def fits_flash(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """The device, the precision and the layout are the kernel's."""
    if q.device.type != "cuda" or q.dtype not in _HALF or q.shape[-1] % 8 or q.shape[-1] > 256:
        return False
    alike = all(x.dtype == q.dtype and x.stride(-1) == 1 for x in (q, k, v))
    return alike and torch.version.hip is None and torch.cuda.get_device_capability(q.device)[0] >= 8


def flash_band(
    q: Float[Tensor, "*n h c"],
    k: Float[Tensor, "*n g c"],
    v: Float[Tensor, "*n g c"],
    band: Band,
    scale: float,
    documents: Documents | None = None,
) -> Float[Tensor, "*n h c"]:
    """Rows [b t h c], or documents laid end to end [n h c]. Groups of query heads may share a key head."""
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
        is_causal=False,  # nothing ahead is causal as it is
        return_debug_mask=False,
        scale=scale,
        window_size_left=back,
        window_size_right=ahead,
    )[0]
    return y
