"""What is known about the tokens of a call besides their vectors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Marks(NamedTuple):
    """Integers about tokens that a mask or a position scheme may compare; absent is None."""

    position: Tensor
    segment: Tensor | None = None
    order: Tensor | None = None
    stream: Tensor | None = None
    prefix: Tensor | None = None

    def as_queries(self) -> "Marks":
        """[b t] -> [b t 1], to be compared with keys."""
        return Marks(*(None if mark is None else mark[..., :, None] for mark in self))  # type: ignore[arg-type]

    def as_keys(self) -> "Marks":
        """[b s] -> [b 1 s]."""
        return Marks(*(None if mark is None else mark[..., None, :] for mark in self))  # type: ignore[arg-type]


class Documents(NamedTuple):
    """Where documents begin when all rows of a batch are laid end to end; the padding of a row is one, too."""

    bounds: Int[Tensor, " n"]
    """The first token of each, then the number of all tokens, repeated to a length that few batches differ in."""
    longest: int
    """No document has more tokens."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Memory:
    """What an encoder leaves for a decoder."""

    x: Float[Tensor, "b s d"]
    valid: Bool[Tensor, "b s"] | None = None
    segments: Int[Tensor, "b s"] | None = None
    """Packed sources: a packed target sees only the segment of its own number."""
    layers: tuple[Tensor, ...] = ()
    final: Any = None
    """The states in which its recurrent parts ended, in their order: where a recurrent decoder may begin."""
    entry: Float[Tensor, "b s d"] | None = None
    """What went into its first layer."""
    losses: Mapping[str, Tensor] = field(default_factory=dict)
    """What the parts of the encoder ask for themselves."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Frame:
    """What is known about the tokens of this call besides their vectors."""

    positions: Int[Tensor, "b t"] | None = None
    """None: 0..t-1, the plain case and the fast path. Needed with a state."""
    valid: Bool[Tensor, "b t"] | None = None
    """None: all valid. An invalid token changes nothing: no state, no neighbour."""
    segments: Int[Tensor, "b t"] | None = None
    """Packed documents: tokens of different segments do not see each other."""
    types: Int[Tensor, "b t"] | None = None
    """BERT's token types."""
    prefix: Int[Tensor, " b"] | None = None
    """Length of the part that a prefix-LM reads in both directions."""
    order: Int[Tensor, "b t"] | None = None
    """Place of each token in a permuted reading order."""
    stream: Int[Tensor, "b t"] | None = None
    """0 content, 1 query: the two halves of a permutation model."""
    memory: Memory | None = None
    """The encoder's output, for cross-attention."""
    entry: Float[Tensor, "b t d"] | None = None
    """What went into the first layer, for those further up who look at the words again; set by the model."""
    reach: int | None = None
    """With a state: a number above every position so far, where one is known without looking; the rest is empty."""
    past: int | None = None
    """With a state: rows that are all alike, each with exactly so many tokens before these and none left out."""
    dense: bool = False
    """With a state: each row has every token before its positions, and of these none is left out."""
    documents: Documents | None = None
    """Of packed rows without gaps: where the segments begin, found once a batch where nobody has to wait for it."""

    @property
    def plain(self) -> bool:
        """Nothing but 0..t-1: whatever depends on positions alone can be prepared beforehand."""
        return all(m is None for m in (self.positions, self.segments, self.prefix, self.order, self.stream))

    @property
    def alike(self) -> bool:
        """All rows are known to have the same positions: there is one row, or one that stands for all (`expand`)."""
        return self.positions is None or self.positions.shape[0] == 1 or self.positions.stride(0) == 0

    def where(self, x: Float[Tensor, "b t d"]) -> Int[Tensor, "#b t"]:
        """The positions of x's tokens; one row stands for all where nothing was said."""
        if self.positions is not None:
            return self.positions
        return torch.arange(x.shape[1], device=x.device)[None]

    def marks(self, x: Float[Tensor, "b t d"]) -> Marks:
        """All integers about x's tokens."""
        prefix = None if self.prefix is None else self.prefix[:, None]
        return Marks(self.where(x), self.segments, self.order, self.stream, prefix)
