"""One attention call: which keys each query may see, what is known about them, and the caches that they come from.

In a key/value cache the slot of a token is its position. A spare slot after the last one takes the writes of padding,
so that the number of writes does not depend on data.
"""

from functools import reduce
from operator import and_
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anyformer.core.frame import AlignedCursor, ContiguousCursor, DocumentBounds, Frame, Marks, Memory, RaggedCursor
from anyformer.core.masks import MaskRule
from anyformer.core.part import Bias
from anyformer.errors import Problem, SpecError


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


class KeyValueCache(NamedTuple):
    """The keys and values of all tokens so far; the state of self-attention."""

    k: Float[Tensor, "b slots g c"]
    v: Float[Tensor, "b slots g e"]
    filled: Bool[Tensor, "b slots"]
    """True for slots that hold a token."""

    @classmethod
    def empty(cls, batch: int, max_len: int, heads: int, channels: int, like: Tensor) -> "KeyValueCache":
        """A cache for max_len tokens, with the dtype and device of `like`."""
        k = like.new_zeros(batch, max_len + 1, heads, channels)
        return cls(k, torch.zeros_like(k), torch.zeros(k.shape[:2], dtype=torch.bool, device=k.device))

    @property
    def max_len(self) -> int:
        """Tokens that it has room for, and the index of the slot that padding is written to."""
        return self.k.shape[1] - 1

    def append(self, k: Float[Tensor, "b t g c"], v: Float[Tensor, "b t g e"], frame: Frame) -> Keys:
        """Writes new tokens in place. Returns the keys and values up to the last slot that may be filled."""
        cursor, positions = frame.cursor, frame.positions
        if isinstance(cursor, AlignedCursor):  # the same slots in all rows, known on the host: plain copies
            self.k.narrow(1, cursor.past, k.shape[1]).copy_(k)
            self.v.narrow(1, cursor.past, k.shape[1]).copy_(v)
            self.filled.narrow(1, cursor.past, k.shape[1]).fill_(True)
            return self._keys(self._slots(cursor.past + k.shape[1]), plain=cursor.past == 0, none_later=True)
        if isinstance(cursor, ContiguousCursor):  # slots known from the tensor of positions alone; none is padding
            assert positions is not None
            if frame.same_positions:
                self.k.index_copy_(1, positions[0], k.to(self.k.dtype))
                self.v.index_copy_(1, positions[0], v.to(self.v.dtype))
                self.filled.index_fill_(1, positions[0], True)
            else:
                self._write(k, v, positions)
            slots = self._slots(min(cursor.end or self.max_len, self.max_len))
            return self._keys(slots, slots <= positions[:, -1:], none_later=True)
        if positions is None or frame.segments is not None:
            raise SpecError("a state takes one document a row: set frame.positions, and no frame.segments.")
        fits = (positions >= 0) & (positions < self.max_len)
        # on a GPU the check would make the host wait; the engine's cursors never exceed the room
        if cursor is None and positions.device.type == "cpu" and not torch.compiler.is_compiling() and not fits.all():
            wrong = positions[~fits if frame.valid is None else ~fits & frame.valid].flatten().tolist()
            if wrong:
                text = f"{wrong[0]} does not fit into a state for max_len={self.max_len} tokens."
                raise SpecError(
                    problems=[Problem("frame.positions", f"{text} Make room: model.init_state(batch, max_len).")]
                )
        self._write(k, v, positions.where(fits if frame.valid is None else fits & frame.valid, self.max_len))
        end = min(cursor.end, self.max_len) if isinstance(cursor, RaggedCursor) else self.max_len
        return self._keys(self._slots(end), self.filled[:, :end])

    def _slots(self, end: int) -> Int[Tensor, "1 s"]:
        return torch.arange(end, device=self.k.device)[None]

    def _keys(
        self, slots: Tensor, valid: Tensor | None = None, *, plain: bool = False, none_later: bool = False
    ) -> Keys:
        k, v = self.k.narrow(1, 0, slots.shape[1]), self.v.narrow(1, 0, slots.shape[1])
        return Keys(k, v, Marks(slots), valid, plain, none_later)

    def _write(self, k: Tensor, v: Tensor, slots: Int[Tensor, "b t"]) -> None:
        rows = torch.arange(k.shape[0], device=k.device)[:, None]
        self.k[rows, slots] = k.to(self.k.dtype)
        self.v[rows, slots] = v.to(self.v.dtype)
        self.filled[rows, slots] = torch.ones_like(slots, dtype=torch.bool)  # a bare True is copied from the host


class NewKeys(NamedTuple):
    """New keys and values that `attend` appends to a cache: the decode kernel appends and attends in one launch."""

    cache: KeyValueCache
    k: Float[Tensor, "b t g c"]
    v: Float[Tensor, "b t g c"]
    frame: Frame
    fused: Float[Tensor, "b t n c"] | None = None
    """As in `Keys`."""


class SourceKeyValues(NamedTuple):
    """The keys and values of an encoder's output, projected once; the state of cross-attention."""

    k: Float[Tensor, "b s g c"]
    v: Float[Tensor, "b s g c"]
    valid: Bool[Tensor, "b s"]

    def keys(self, memory: Memory | None) -> Keys:
        """The keys of a call. `memory` is None when decoding from a state, which does not record what is not needed."""
        marks = Marks(torch.arange(self.k.shape[1], device=self.k.device)[None])
        if memory is None:
            return Keys(self.k, self.v, marks, self.valid)
        return Keys(self.k, self.v, Marks(marks.position, memory.segments), memory.valid)
