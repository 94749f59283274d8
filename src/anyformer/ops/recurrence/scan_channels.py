"""How the channels of a linear scan share their decays; the kernels are specialised for it."""

from collections.abc import Sequence
from typing import NamedTuple

_BLOCK = 128
"""Channels of a program, which is one warp: one vector for each lane."""


class Channels(NamedTuple):
    """A table of [outer repeats inner] lines of `width`; decays have no repeats, and one value a line if `shared`."""

    outer: int
    repeats: int
    inner: int
    width: int
    shared: bool

    @property
    def lines(self) -> int:
        return self.outer * self.repeats * self.inner

    @property
    def channels(self) -> int:
        return self.lines * self.width

    @property
    def decays(self) -> int:
        return self.outer * self.inner * (1 if self.shared else self.width)

    @property
    def wide(self) -> int:
        """Columns of a block."""
        return int(min(_BLOCK, 1 << (self.width - 1).bit_length()))

    @property
    def high(self) -> int:
        """Lines of a block."""
        return _BLOCK // self.wide

    @property
    def across(self) -> int:
        """Blocks side by side."""
        return -(-self.width // self.wide)

    @property
    def blocks(self) -> int:
        return -(-self.lines // self.high) * self.across

    @property
    def parts(self) -> tuple[int, int, int, int]:
        """Shape of the partial sums of a step's decay gradients, one for each block."""
        return self.outer, self.repeats, self.inner, self.across if self.shared else self.width


def channels_of(a: Sequence[int], b: Sequence[int]) -> Channels | None:
    """The table for the shapes of one step of a and b; None if a broadcasts in another way."""
    if len(a) != len(b) or any(one not in (1, every) for one, every in zip(a, b, strict=True)):
        return None
    kinds: list[str] = []
    sizes: list[int] = []
    for one, every in zip(a, b, strict=True):
        kind = "own" if one == every else "shared"  # as a string: under a compiler sizes are symbols
        if every != 1 and kinds and kinds[-1] == kind:
            sizes[-1] *= every
        elif every != 1:
            kinds.append(kind)
            sizes.append(every)
    shared = bool(kinds) and kinds[-1] == "shared"
    table = sizes if shared else [*sizes[:-1], 1, *sizes[-1:]]
    if len(table) > 4:
        return None
    outer, repeats, inner, width = [1] * (4 - len(table)) + table
    return Channels(outer, repeats, inner, width, shared)
