"""Position schemes act on token vectors, queries and keys, scores, or values; hooks not implemented are identities."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from anyformer.core.frame import Marks
from anyformer.core.module import Call, Module, Site
from anyformer.core.spec import Spec
from anyformer.errors import SpecError, at

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""FlexAttention's (score, b, h, q, k) -> score, over indices into the call's tokens."""


class Heads(NamedTuple):
    """Number, width and scale of the heads that a scheme acts on; an embedding is one head as wide as the model."""

    number: int
    channels: int
    scale: float = 1.0
    key_heads: int | None = None
    """Number of key/value heads, if queries share them; otherwise None."""


class Bias(NamedTuple):
    """A term added to the scaled scores: as a dense tensor, and element by element for FlexAttention."""

    dense: Callable[[], Float[Tensor, "#b h t s"]]
    score_mod: ScoreMod


class Position(Module):
    """A position scheme, built by a `PositionSpec`. The base class is the scheme without positions."""

    longest: int | None = None
    """Number of positions that it has a vector for; None: no limit."""
    rotates: ClassVar[bool] = False
    """True: `rotate` is implemented, so that queries and keys are no longer slices of one projection."""
    has_bias: ClassVar[bool] = False
    """True: `bias` is implemented."""
    has_values: ClassVar[bool] = False
    """True: `values` is implemented, so that attention must make its weights explicit."""
    per_head: ClassVar[bool] = True
    """False: all heads get the same positions and nothing is learned, so that a rank can have some of the heads."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.rotates = cls.rotate is not Position.rotate
        cls.has_bias = cls.bias is not Position.bias
        cls.has_values = cls.values is not Position.values

    def embed(self, x: Float[Tensor, "b t d"], positions: Int[Tensor, "#b t"]) -> Float[Tensor, "b t d"]:
        """Token vectors with their positions, before the first layer."""
        return x

    def rotate(self, x: Float[Tensor, "b t h c"], positions: Int[Tensor, "#b t"]) -> Float[Tensor, "b t h c"]:
        """Queries or keys with their positions."""
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

    def check_length(self, max_len: int) -> None:
        """Raises SpecError if max_len tokens would need more positions than there are."""
        if self.longest is not None and max_len > self.longest:
            raise SpecError(f"{max_len} tokens do not fit the {self.longest} learned positions; raise max_len.")

    @classmethod
    def enters(cls) -> bool:
        """True: it acts on token vectors, so it belongs before a stack."""
        return cls.embed is not Position.embed

    @classmethod
    def acts_inside(cls) -> bool:
        """True: it acts on queries, keys, scores or values, so it belongs inside attention."""
        return cls.rotates or cls.has_bias or cls.has_values

    def head_flops(self, call: Call, keys: int) -> tuple[int, int]:
        """FLOPs (forward, backward) of `bias` and `values` in one attention call over `keys` keys."""
        return 0, 0


@dataclass(frozen=True, kw_only=True)
class PositionSpec(Spec):
    """How positions enter a model."""

    def sizes(self, site: Site) -> Mapping[str, Any]:
        """The fields that follow from the place if they are left out, with their values there."""
        return {}

    def build(self, site: Site, heads: Heads) -> Position:
        raise NotImplementedError

    def build_inside(self, site: Site, heads: Heads) -> Position:
        """The scheme, for attention; raises SpecError if it acts on token vectors alone."""
        with at("position"):
            position = self.build(site, heads)
            if position.enters() and not position.acts_inside():
                raise SpecError(f"{self.kind} acts on token vectors: make it the position of the model.")
        return position

    def build_for_scores(self, site: Site, heads: Heads) -> Position:
        """The scheme, for attention to past inputs; raises SpecError if it does not act on scores alone."""
        with at("position"):
            position = self.build(site, heads)
            if not position.acts_inside() or position.has_values:
                raise SpecError(f"{self.kind} does not act on scores. Use xl, rope, alibi or t5_bias.")
        return position

    def build_vectors(self, site: Site, heads: Heads) -> Position:
        """The scheme, for parts that need its position vectors; raises SpecError if it has none."""
        with at("position"):
            position = self.build(site, heads)
            if not position.enters():
                raise SpecError(f"{self.kind} has no position vectors. Use sinusoidal, learned or concatenate.")
        return position
