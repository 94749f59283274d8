"""A learned vector for each position: x_t + P[t + offset], up to max_len."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from anyformer.core import Amount, Count, Heads, Position, PositionSpec, Site, Table
from anyformer.errors import SpecError


@dataclass(frozen=True, kw_only=True)
class LearnedPosition(PositionSpec, kind="learned"):
    """A learned vector for each position."""

    limits: ClassVar[Mapping[str, str]] = {"length": "the table ends at max_len"}

    max_len: Count | None = None
    """Rows of the table; the model's max_len if not given."""
    offset: Amount = 0
    """Rows before that of the first position; RoBERTa and BART have two that no position uses."""

    def check(self) -> None:
        if self.max_len is not None and self.max_len <= self.offset:
            raise SpecError(f"max_len={self.max_len} must be above offset={self.offset}: a table needs a row to use.")

    @classmethod
    def examples(cls) -> "tuple[LearnedPosition, ...]":
        return cls(), cls(offset=2)

    def sizes(self, site: Site) -> dict[str, int]:
        return {"max_len": self.max_len or site.max_len + self.offset}

    def build(self, site: Site, heads: Heads) -> "LearnedModule":
        return LearnedModule(self.sizes(site)["max_len"], self.offset, heads)


class LearnedModule(Position):
    def __init__(self, rows: int, offset: int, heads: Heads):
        super().__init__()
        self.longest, self.offset = rows - offset, offset
        self.table = Table(rows, heads.number * heads.channels, role="position")

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        self.check_length(x.shape[1])
        return x + self.table(positions + self.offset if self.offset else positions)
