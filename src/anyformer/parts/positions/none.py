"""No positions: an encoder does not know the order of its tokens then, a decoder only from its causal mask."""

from dataclasses import dataclass

from anyformer.core import Heads, Position, PositionSpec, Site


@dataclass(frozen=True, kw_only=True)
class NoPosition(PositionSpec, kind="none"):
    """No positions, explicitly: for a study that removes them."""

    def build(self, site: Site, heads: Heads) -> Position:
        return Position()
