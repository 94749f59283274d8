"""How a model knows where its tokens stand. A scheme uses one of four doors; the others stay the identity."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from anyformer.core.frame import Marks
from anyformer.core.module import Call, Module
from anyformer.core.site import Site
from anyformer.core.spec import Spec
from anyformer.errors import SpecError

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""FlexAttention's (score, b, h, q, k) -> score, over indices into the call's tokens."""


class Heads(NamedTuple):
    """The attention heads that a scheme serves; an embedding is one head as wide as the model."""

    number: int
    channels: int
    scale: float = 1.0
    key_heads: int | None = None
    """Number of key/value heads, if queries share them; otherwise None."""


class Bias(NamedTuple):
    """What a scheme adds to the scaled scores: written out, and for FlexAttention element by element."""

    dense: Callable[[], Float[Tensor, "#b h t s"]]
    score_mod: ScoreMod


class Position(Module):
    """Built by a `PositionSpec`."""

    def embed(self, x: Float[Tensor, "b t d"], positions: Int[Tensor, "#b t"]) -> Float[Tensor, "b t d"]:
        """Puts positions into the token vectors, before the first layer."""
        return x

    def turn(self, x: Float[Tensor, "b t h c"], positions: Int[Tensor, "#b t"]) -> Float[Tensor, "b t h c"]:
        """Puts positions into queries and keys."""
        return x

    def bias(
        self, q: Float[Tensor, "b t h c"], k: Float[Tensor, "b s g c"], q_marks: Marks, k_marks: Marks
    ) -> Bias | None:
        """A term added to the scaled scores. Marks are [b t] and [b s]."""
        return None

    def values(
        self, weights: Float[Tensor, "b h t s"], q_marks: Marks, k_marks: Marks
    ) -> Float[Tensor, "b t h c"] | None:
        """A term added to the weighted sum of values; None: no such term."""
        return None

    longest: int | None = None
    """Number of positions that the scheme has a vector for; None: no limit."""

    def check_length(self, max_len: int) -> None:
        """Raises SpecError if max_len tokens would need more positions than there are."""
        if self.longest is not None and max_len > self.longest:
            raise SpecError(f"{max_len} tokens do not fit the {self.longest} learned positions; raise max_len.")

    @property
    def has_values(self) -> bool:
        """True: `values` adds something, so attention must make its weights explicit."""
        return False

    @classmethod
    def enters(cls) -> bool:
        """True: it acts on token vectors, so it belongs in front of a stack."""
        return cls.embed is not Position.embed

    @classmethod
    def acts_inside(cls) -> bool:
        """True: it acts on queries, keys or scores, so it belongs into attention."""
        return (cls.turn, cls.bias, cls.values) != (Position.turn, Position.bias, Position.values)

    def head_flops(self, call: Call, keys: int) -> tuple[int, int]:
        """FLOPs (forward, backward) of `bias` and `values` in one attention call over `keys` keys."""
        return 0, 0


@dataclass(frozen=True, kw_only=True)
class PositionSpec(Spec):
    """How a model knows where its tokens stand."""

    def build(self, site: Site, heads: Heads) -> Position:
        raise NotImplementedError
