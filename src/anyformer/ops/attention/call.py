"""One attention call: which keys each query may see, and what is known about them."""

from functools import reduce
from operator import and_
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from anyformer.core.frame import DocumentBounds, Marks
from anyformer.core.masks import MaskRule
from anyformer.core.positions import Bias


class Keys(NamedTuple):
    """The keys and values of one attention call, with everything that is known about their tokens."""

    k: Float[Tensor, "b s g c"]
    v: Float[Tensor, "b s g c"]
    marks: Marks
    """[b s], or [1 s] if all rows are alike."""
    valid: Bool[Tensor, "b s"] | None = None
    """False: padding, or an empty slot of a cache. None: all keys are valid."""
    plain: bool = False
    """True: queries and keys are the same tokens 0..t-1, so that a static rule depends on the length alone."""
    none_later: bool = False
    """True: no valid key is later than the last query; a single causal query then sees all of them."""
    documents: DocumentBounds | None = None
    """Where documents begin, if queries and keys are the same packed tokens."""
    fused: Float[Tensor, "b t n c"] | None = None
    """The tensor of which q, k and v are slices, side by side along the heads; None if they are separate tensors."""


class AttentionCall(NamedTuple):
    """A mask rule with the queries and keys that it is applied to. Packed documents never see each other."""

    rule: MaskRule
    q: Marks
    """[b t], or [1 t] if all rows are alike."""
    k: Marks
    valid: Bool[Tensor, "b s"] | None = None
    """False: a key that no query sees. None: all keys are valid."""
    plain: bool = False
    """True: queries and keys are the same tokens 0..t-1, so that a static rule depends on the length alone."""
    documents: DocumentBounds | None = None
    """Where documents begin, if queries and keys are the same packed tokens."""

    @property
    def packed(self) -> bool:
        """True: queries and keys have document numbers, and only tokens of the same document see each other."""
        return self.q.segment is not None and self.k.segment is not None

    def is_causal(self) -> bool:
        """True for the plain causal triangle, which every kernel has a fast path for."""
        return self.plain and self.rule.is_causal and self.valid is None

    def is_sparse(self) -> bool:
        """True for a rule that is known from the length alone and may leave out whole blocks."""
        return self.plain and self.rule.static and not self.rule.is_full and not self.rule.is_causal

    def mask(self) -> Bool[Tensor, "b t s"] | None:
        """The mask as a tensor, True where a query sees a key; None if every query sees every key."""
        masks = [] if self.rule.is_full else [self.rule.allows(self.q.as_queries(), self.k.as_keys())]
        if self.q.segment is not None and self.k.segment is not None:
            masks.append(self.q.segment[..., :, None] == self.k.segment[..., None, :])
        if self.valid is not None:
            masks.append(self.valid[:, None, :])
        if not masks:
            return None
        allowed = reduce(and_, masks)
        shape = self.q.position.shape[-1], self.k.position.shape[-1]
        return torch.broadcast_to(allowed, (*allowed.shape[:-2], *shape))


def attention_weights(
    q: Float[Tensor, "#b t h c"],
    k: Float[Tensor, "#b s g c"],
    call: AttentionCall,
    *,
    scale: float,
    bias: Bias | None = None,
) -> Float[Tensor, "b h t s"]:
    """softmax_j(scale q_i . k_j + bias_ij); a query that sees no key has zeros."""
    scores = torch.einsum("bthc,bshc->bhts", q * scale, _repeat_heads(k, q.shape[2]))
    if bias is not None:
        scores = scores + bias.dense()
    mask = call.mask()
    if mask is None:
        return scores.softmax(-1)
    mask = mask[:, None]
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
    return weights.masked_fill(~mask, 0.0)  # softmax would make a row without keys uniform


def weighted_sum(weights: Float[Tensor, "#b h t s"], v: Float[Tensor, "b s g c"]) -> Float[Tensor, "b t h c"]:
    """sum_j weights_ij v_j."""
    return torch.einsum("bhts,bshc->bthc", weights, _repeat_heads(v, weights.shape[1]))


def attend_loop(
    q: Float[Tensor, "b t h c"],
    k: Float[Tensor, "b s g c"],
    v: Float[Tensor, "b s g c"],
    call: AttentionCall,
    *,
    scale: float,
) -> Float[Tensor, "b t h c"]:
    """The definition, one query at a time: the reference that every fast path is tested against."""
    mask, group = call.mask(), q.shape[2] // k.shape[2]
    y = torch.zeros_like(q)
    for b in range(q.shape[0]):
        for h in range(q.shape[2]):
            for i in range(q.shape[1]):
                row = None if mask is None else mask[min(b, mask.shape[0] - 1), i]
                seen = [j for j in range(k.shape[1]) if row is None or row[j]]
                if seen:
                    keys, values = k[b, seen, h // group], v[b, seen, h // group]
                    y[b, i, h] = (scale * keys @ q[b, i, h]).softmax(0) @ values
    return y


def _repeat_heads(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[2] == heads else x.repeat_interleave(heads // x.shape[2], dim=2)
