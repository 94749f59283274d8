"""A learned vector for each position: x_t + P[t], up to max_len."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from anyformer.core import Count, Heads, Position, PositionSpec, Site, Table


@dataclass(frozen=True, kw_only=True)
class LearnedPosition(PositionSpec, kind="learned"):
    """A learned vector for each position."""

    limits: ClassVar[Mapping[str, str]] = {"length": "the table ends at max_len"}

    max_len: Count | None = None
    """Rows of the table; the model's max_len if not given."""

    def build(self, site: Site, heads: Heads) -> "LearnedModule":
        return LearnedModule(self.max_len or site.max_len, heads)


class LearnedModule(Position):
    def __init__(self, rows: int, heads: Heads):
        super().__init__()
        self.longest = rows
        self.table = Table(rows, heads.number * heads.channels, role="position")

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        self.check_length(x.shape[1])
        return x + self.table(positions)
