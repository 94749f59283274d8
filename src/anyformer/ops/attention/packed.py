"""Attention inside packed documents, each by itself: no mask is written out, and no pair is looked at that it forbids.

On a GPU a kernel that knows where each token's document lies, or else flash attention of rows of any lengths, both
under a window too; on a CPU one call for each document.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from anyformer.core.frame import Documents
from anyformer.core.masks import And, Band, MaskRule, Segment, common_band
from anyformer.ops.attention.call import AttentionCall
from anyformer.ops.attention.flash_band import fits_flash, flash_band
from anyformer.ops.attention.packed_gpu import attend_packed, worth_kernel

_LEAST_LENGTH = 16
"""Of a CPU's documents on average; many short ones are cheaper in one call with a mask."""
_SHORT_ROW = 128
"""Tokens, up to which one mask for all layers is cheaper on a GPU as well."""


def worth_documents(q: Tensor, k: Tensor, v: Tensor, sight: AttentionCall) -> bool:
    """The rule is a band inside each document, and the device has a way."""
    band = None if sight.documents is None else _band(sight.rule)
    if band is None or sight.documents is None:
        return False
    if q.device.type == "cpu":
        average = q.shape[0] * q.shape[1] / len(sight.documents.bounds)
        unbounded = band.back is None and band.ahead in (None, 0)
        return unbounded and average >= _LEAST_LENGTH and not torch.compiler.is_compiling()
    return q.shape[1] > _SHORT_ROW and fits_flash(q, k, v)


def attend_documents(
    q: Float[Tensor, "b t h c"],
    k: Float[Tensor, "b t g c"],
    v: Float[Tensor, "b t g c"],
    sight: AttentionCall,
    scale: float,
    heads: Tensor | None = None,
) -> Float[Tensor, "b t h c"]:
    """Attention of every token to those of its own document; `heads` as for `attend`."""
    band, documents = _band(sight.rule), sight.documents
    assert band is not None and documents is not None
    flat = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    if q.device.type == "cpu":
        return _each(*flat, documents, causal=band.ahead == 0, scale=scale).view_as(q)
    if worth_kernel(*flat, scale):
        parts = flat if heads is None else (heads.flatten(0, 1),)
        return attend_packed(parts, k.shape[2], band, scale, documents).view_as(q)
    return flash_band(*flat, band, scale, documents).view_as(q)


def _band(rule: MaskRule) -> Band | None:
    """Of what a token sees in its document; None where documents are not kept apart, or the rest is no band."""
    # a band of positions is one of tokens: in a document both count up by one
    rules = rule.rules if isinstance(rule, And) else (rule,)
    others = [it for it in rules if not isinstance(it, Segment)]
    return common_band(others) if len(others) < len(rules) else None


def _each(q: Tensor, k: Tensor, v: Tensor, documents: Documents, *, causal: bool, scale: float) -> Tensor:
    lengths, grouped = [length for length in documents.bounds.diff().tolist() if length], q.shape[1] != k.shape[1]
    pieces = (x.transpose(0, 1)[None].split(lengths, dim=2) for x in (q, k, v))  # [1 h n c]
    found = [
        F.scaled_dot_product_attention(q_n, k_n, v_n, is_causal=causal, scale=scale, enable_gqa=grouped)
        for q_n, k_n, v_n in zip(*pieces, strict=True)
    ]
    return torch.cat(found, dim=2)[0].transpose(0, 1)
