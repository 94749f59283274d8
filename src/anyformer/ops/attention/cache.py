"""The key/value cache of self-attention, and the ways in which new tokens are written to it.

The slot of a token is its position. A spare slot after the last one takes the writes of padding, so that the number of
writes does not depend on data.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anyformer.core.frame import AlignedCursor, ContiguousCursor, Frame, Marks, Memory, RaggedCursor
from anyformer.errors import SpecError
from anyformer.ops.attention.call import Keys


class KeyValueCache(NamedTuple):
    """The keys and values of all tokens so far; the state of self-attention."""

    k: Float[Tensor, "b slots g c"]
    v: Float[Tensor, "b slots g c"]
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

    def append(self, k: Float[Tensor, "b t g c"], v: Float[Tensor, "b t g c"], frame: Frame) -> Keys:
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
