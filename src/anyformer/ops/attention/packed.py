"""Attention under a band of distances (causal, window), in plain rows or inside packed documents.

No dense mask is built, and forbidden pairs are skipped: on a GPU by a kernel that knows the bounds of each token's
document, or else by flash attention; on a CPU by one call for each packed document.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from anyformer.core.frame import DocumentBounds
from anyformer.core.masks import And, Band, MaskRule, Segment, common_band
from anyformer.ops.attention.call import AttentionCall
from anyformer.ops.attention.flash_band import fits_flash, flash_band
from anyformer.ops.attention.packed_gpu import attend_packed, attend_rows, prefers_kernel

_LEAST_LENGTH = 16
"""Average tokens of a document on a CPU; many short ones are cheaper in one call with a mask."""
_SHORT_ROW = 128
"""Tokens of a row up to which one mask for all layers is cheaper on a GPU as well."""


def prefers_band(q: Tensor, k: Tensor, v: Tensor, call: AttentionCall) -> bool:
    """True: rows without padding, a sparse rule that is a band, and a device with a kernel for it."""
    return call.is_sparse() and call.valid is None and call.rule.band is not None and fits_flash(q, k, v)


def attend_band(
    q: Float[Tensor, "b t h c"],
    k: Float[Tensor, "b t g c"],
    v: Float[Tensor, "b t g c"],
    call: AttentionCall,
    scale: float,
    fused: Tensor | None = None,
) -> Float[Tensor, "b t h c"]:
    """Attention of every token to the tokens of its row that lie in the band; `fused` as in `Keys`."""
    band = call.rule.band
    assert band is not None
    if prefers_kernel(q, k, v, scale):
        return attend_rows((q, k, v) if fused is None else (fused,), k.shape[2], band, scale)
    return flash_band(q, k, v, band, scale)


def prefers_documents(q: Tensor, k: Tensor, v: Tensor, call: AttentionCall) -> bool:
    """True: the rule is a band inside each document, the bounds are known, and the device has a kernel."""
    band = band_in_document(call.rule)
    if band is None or call.documents is None or not call.packed:
        return False
    if q.device.type == "cpu":
        average = q.shape[0] * q.shape[1] / len(call.documents.bounds)
        unbounded = band.back is None and band.ahead in (None, 0)
        return unbounded and average >= _LEAST_LENGTH and not torch.compiler.is_compiling()
    return q.shape[1] > _SHORT_ROW and fits_flash(q, k, v)


def attend_documents(
    q: Float[Tensor, "b t h c"],
    k: Float[Tensor, "b t g c"],
    v: Float[Tensor, "b t g c"],
    call: AttentionCall,
    scale: float,
    fused: Tensor | None = None,
) -> Float[Tensor, "b t h c"]:
    """Attention of every token to the tokens of its own document that lie in the band; `fused` as in `Keys`."""
    band, documents = band_in_document(call.rule), call.documents
    assert band is not None and documents is not None
    flat = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    if q.device.type == "cpu":
        return _each(*flat, documents, causal=band.ahead == 0, scale=scale).view_as(q)
    if prefers_kernel(*flat, scale):
        parts = flat if fused is None else (fused.flatten(0, 1),)
        return attend_packed(parts, k.shape[2], band, scale, documents).view_as(q)
    return flash_band(*flat, band, scale, documents).view_as(q)


def band_in_document(rule: MaskRule) -> Band | None:
    """The band of tokens that a token sees in its own document; None if the rule is no band.

    A band of positions is one of tokens: in a document both count up by one.
    """
    rules = rule.rules if isinstance(rule, And) else (rule,)
    return common_band([part for part in rules if not isinstance(part, Segment)])


def _each(q: Tensor, k: Tensor, v: Tensor, documents: DocumentBounds, *, causal: bool, scale: float) -> Tensor:
    lengths, grouped = [length for length in documents.bounds.diff().tolist() if length], q.shape[1] != k.shape[1]
    pieces = (x.transpose(0, 1)[None].split(lengths, dim=2) for x in (q, k, v))  # [1 h n c]
    outputs = [
        F.scaled_dot_product_attention(q_n, k_n, v_n, is_causal=causal, scale=scale, enable_gqa=grouped)
        for q_n, k_n, v_n in zip(*pieces, strict=True)
    ]
    return torch.cat(outputs, dim=2)[0].transpose(0, 1)
