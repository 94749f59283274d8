"""Attention inside packed documents, each by itself: no mask is written out, and no pair is looked at that it forbids.

On a GPU flash attention of rows of any lengths (`varlen_attn`), on a CPU one call for each document.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from anyformer.core.frame import Documents
from anyformer.core.masks import And, Causal, MaskRule, Segment
from anyformer.ops.sight import Sight

_LEAST_LENGTH = 16
"""Of a CPU's documents on average; many short ones are cheaper in one call with a mask."""
_HALF = (torch.bfloat16, torch.float16)


def worth_documents(q: Tensor, sight: Sight) -> bool:
    """The rule is one of these, and the device has a way."""
    if sight.documents is None or not (isinstance(sight.rule, Segment) or _is_causal(sight.rule)):
        return False
    if q.device.type == "cpu":
        average = q.shape[0] * q.shape[1] / len(sight.documents.bounds)
        return average >= _LEAST_LENGTH and not torch.compiler.is_compiling()
    fits = q.dtype in _HALF and q.shape[3] % 8 == 0 and q.shape[3] <= 256
    return q.device.type == "cuda" and fits and torch.cuda.get_device_capability(q.device)[0] >= 8


def attend_documents(
    q: Float[Tensor, "b t h c"], k: Float[Tensor, "b t g c"], v: Float[Tensor, "b t g c"], sight: Sight, scale: float
) -> Float[Tensor, "b t h c"]:
    """Attention of every token to those of its own document."""
    assert sight.documents is not None
    run, causal = _each if q.device.type == "cpu" else _together, _is_causal(sight.rule)
    y = run(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), sight.documents, causal=causal, scale=scale)
    return y.view_as(q)


def _is_causal(rule: MaskRule) -> bool:
    """A token sees what came before it in its document."""
    return isinstance(rule, And) and len(rule.rules) == 2 and all(isinstance(it, Causal | Segment) for it in rule.rules)


def _each(q: Tensor, k: Tensor, v: Tensor, documents: Documents, *, causal: bool, scale: float) -> Tensor:
    lengths, grouped = [length for length in documents.bounds.diff().tolist() if length], q.shape[1] != k.shape[1]
    pieces = (x.transpose(0, 1)[None].split(lengths, dim=2) for x in (q, k, v))  # [1 h n c]
    found = [
        F.scaled_dot_product_attention(q_n, k_n, v_n, is_causal=causal, scale=scale, enable_gqa=grouped)
        for q_n, k_n, v_n in zip(*pieces, strict=True)
    ]
    return torch.cat(found, dim=2)[0].transpose(0, 1)


def _together(q: Tensor, k: Tensor, v: Tensor, documents: Documents, *, causal: bool, scale: float) -> Tensor:
    group, window = q.shape[1] // k.shape[1], (-1, 0 if causal else -1)
    k, v = (x if group == 1 else x.repeat_interleave(group, dim=1) for x in (k, v))
    bounds, longest = documents
    return varlen_attn(q, k, v, bounds, bounds, longest, longest, scale=scale, window_size=window)  # type: ignore[return-value]
