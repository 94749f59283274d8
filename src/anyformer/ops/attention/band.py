"""Attention of plain rows under a band on a GPU: windows, and, in a graph that learns, causal rows of some lengths."""

import torch
from jaxtyping import Float
from torch import Tensor

from anyformer.ops.attention.call import AttentionCall
from anyformer.ops.attention.flash_band import fits_flash, flash_band
from anyformer.ops.attention.packed_gpu import attend_rows, worth_kernel

_CAUSAL_FROM, _CAUSAL_TO = 256, 1024
"""Tokens of causal rows that go through it when they are learnt from; longer ones are not measured, and do not."""


def worth_band(q: Tensor, k: Tensor, v: Tensor, sight: AttentionCall, scale: float) -> bool:
    """Rows without padding, a rule that is a band, and a device that has a kernel for it."""
    if sight.is_causal():
        return _is_ours(q) and worth_kernel(q, k, v, scale)
    return sight.is_sparse() and sight.valid is None and sight.rule.band is not None and fits_flash(q, k, v)


def attend_band(
    q: Float[Tensor, "b t h c"],
    k: Float[Tensor, "b t g c"],
    v: Float[Tensor, "b t g c"],
    sight: AttentionCall,
    scale: float,
    heads: Tensor | None = None,
) -> Float[Tensor, "b t h c"]:
    """Attention of every token to those of its row that lie in the band; `heads` as for `attend`."""
    band = sight.rule.band
    assert band is not None
    if worth_kernel(q, k, v, scale):
        return attend_rows((q, k, v) if heads is None else (heads,), k.shape[2], band, scale)
    return flash_band(q, k, v, band, scale)


def _is_ours(q: Tensor) -> bool:
    learns = torch.is_grad_enabled() and q.requires_grad
    return learns and is_hopper(q) and _CAUSAL_FROM <= q.shape[1] <= _CAUSAL_TO and q.shape[-1] == 64


def is_hopper(x: Tensor) -> bool:
    """What was measured, was measured there."""
    return x.device.type == "cuda" and torch.cuda.get_device_capability(x.device)[0] == 9
