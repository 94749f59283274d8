"""Base classes of the slots inside a model: parts, norms, joins, pools and position schemes.

A position scheme acts on token vectors, queries and keys, scores, or values; hooks not implemented are identities.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from anyformer.core.frame import Frame, Marks, Memory, State
from anyformer.core.module import Call, Module, Site, Source, Widths
from anyformer.core.spec import Spec
from anyformer.errors import SpecError, at

EMPTY: Mapping[str, Tensor] = {}  # a plain dict, since torch.export knows no read-only one


class Out(NamedTuple):
    """The result of a call of a part or a model."""

    y: Tensor
    state: State | None = None
    """The next state, if a state was passed."""
    losses: Mapping[str, Tensor] = EMPTY
    """Auxiliary losses, such as a router's load balance: means over the valid tokens of the call, multiplied by their
    weight in the total loss."""
    frame: Frame | None = None
    """The new frame, if the part changed the length; otherwise None."""
    final: tuple[State, ...] = ()
    """Final states of an encoder's recurrent parts, in their order."""
    layers: tuple[Tensor, ...] = ()
    """Outputs of the layers in order, from a stack that keeps them."""

    def with_y(self, y: Tensor) -> "Out":
        """The same result with another y. (torch 2.11 cannot return the result of `_replace` from a compiled graph.)"""
        return Out(y, self.state, self.losses, self.frame, self.final, self.layers)


def add_losses(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Auxiliary losses of two parts; those of the same name are added."""
    if not second:
        return first
    return {**first, **{name: first[name] + loss if name in first else loss for name, loss in second.items()}}


@dataclass(frozen=True)
class Units:
    """Equal units of a part, such as heads, of which pruning can remove some. They lie one after the other in its
    matrices, which are cut by their roles."""

    name: str
    """heads or neurons."""
    number: int
    per_unit: Mapping[str, int]
    """Fields of the part's spec that are proportional to the number of units -> their value for one unit."""
    fixed: Mapping[str, int] = field(default_factory=dict)
    """Fields to set with them, because they would follow from the number of units if they were left out."""

    def fields_for(self, number: int) -> dict[str, int]:
        """The fields of the part's spec with this number of units."""
        return {**self.fixed, **{name: number * value for name, value in self.per_unit.items()}}


class Part(Module):
    """Anything that acts on a sequence. Training, prefill and decoding are the same call with different lengths."""

    width: int | None = None
    """Output width. Set by parts that support `Site.width`."""
    summary: Widths = ()
    """Widths n of the vectors [b n] of the state, hidden state first, if they hold everything the part has read, so
    that they can initialise another recurrent part; otherwise empty."""
    final_widths: tuple[Widths, ...] = ()
    """Widths of the states in `Out.final`. Set by parts of an encoder that give such states."""
    changes_length: bool = False
    """True: output and input differ in their number of tokens, so that they cannot be added or put side by side."""
    divided: ClassVar[tuple[str, ...] | None] = None
    """Attributes that tensor parallelism divides by the number of ranks, such as the number of heads: with matrices cut
    by their roles, the outputs of all ranks add up to that of the whole part. None: the part cannot be divided."""
    removable: "Units | None" = None
    """The units that pruning can remove; None: the part has no such units."""
    made_from: "PartSpec | None" = None
    """The spec that built this part."""

    def forward(self, x: Float[Tensor, "b t d"], frame: Frame, state: State | None = None) -> Out:
        raise NotImplementedError

    if TYPE_CHECKING:
        __call__ = forward

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        """An empty state. Values that depend on the encoder alone (cross-attention keys) are computed here, once."""
        return ()

    def read_to_end(self, x: Float[Tensor, "b t d"], frame: Frame) -> Out:
        """The output for a whole sequence; a recurrent part also returns its final state in `Out.final`."""
        if not self.summary:
            return self(x, frame)
        out = self(x, frame.with_positions(x), self.init_state(x.shape[0], x.shape[1], frame.memory))
        return out._replace(state=None, final=(out.state,))

    @property
    def read_widths(self) -> tuple[Widths, ...]:
        """Widths of the final states that `read_to_end` gives."""
        return (self.summary,) if self.summary else self.final_widths


@dataclass(frozen=True, kw_only=True)
class PartSpec(Spec):
    """What a branch does: mixes tokens, or works on each of them."""

    causal_only: ClassVar[bool] = False
    """True: reads left to right, so that an encoder needs `bidirectional` or `unidirectional` around it."""
    sources: ClassVar[tuple[Source, ...]] = ("self",)
    """Where keys and values may come from: the part's own tokens, the encoder's output (inside `cross`), or both."""
    needs_inputs: ClassVar[bool] = False
    """True: the part reads `frame.place.inputs`, the input of the first layer, which the model then sets."""
    needs_layer: ClassVar[bool] = False
    """True: the part reads `frame.place.layer`, the number of the layer, which the stack then sets for each of them."""
    reads_source: ClassVar[bool] = False
    """True: the part reads the encoder's output, or lets the part inside it do so."""
    needs_source_layers: ClassVar[bool] = False
    """True: the part reads `Memory.layers`, the outputs of all layers of the encoder, which the encoder then keeps."""

    def sizes(self, site: Site) -> Mapping[str, Any]:
        """The fields that follow from the place if they are left out, with their values there."""
        return {}

    def build(self, site: Site) -> Part:
        """The part for this place. Not called directly: `place` checks the declarations above first."""
        raise NotImplementedError

    def place(self, site: Site) -> Part:
        """The part for this place; raises SpecError if it cannot be used there."""
        if self.causal_only and not site.causal:
            rule = "reads left to right. In an encoder wrap it in bidirectional or unidirectional"
            raise SpecError(f"{self.kind} {rule}.")
        if site.source not in self.sources and site.source == "memory":
            raise SpecError(f"{self.kind} reads its own tokens, not an encoder's; use attention inside cross.")
        if site.source not in self.sources:
            raise SpecError(f"{self.kind} reads an encoder's output: put it inside cross.")
        part = self.build(site)
        part.made_from = part.made_from or self  # a part that only places another one returns that one
        return part


class Norm(Module):
    """Normalises the residual stream."""

    def forward(self, x: Float[Tensor, "b t d"], frame: Frame) -> Float[Tensor, "b t d"]:
        raise NotImplementedError

    if TYPE_CHECKING:
        __call__ = forward


@dataclass(frozen=True, kw_only=True)
class NormSpec(Spec):
    """How the residual stream is normalised."""

    def build(self, site: Site) -> Norm:
        raise NotImplementedError


class Join(Module):
    """Combines the output y of a branch with its input x."""

    def forward(self, x: Float[Tensor, "b t d"], y: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        raise NotImplementedError

    if TYPE_CHECKING:
        __call__ = forward

    def undo(self, joined: Float[Tensor, "b t d"], y: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        """The input x from the result of `forward` and y, of a join whose spec is `invertible`."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class JoinSpec(Spec):
    """How a branch's output is combined with its input."""

    residual: ClassVar[bool] = True
    """True: combines the output with the input, so both must have the same length."""
    invertible: ClassVar[bool] = False
    """True: `Join.undo` gives back the input without magnifying errors, as a reversible stack needs."""

    def build(self, site: Site) -> Join:
        raise NotImplementedError


class Pool(Module):
    """Hidden states of a sequence -> one vector."""

    def forward(self, h: Float[Tensor, "b t d"], frame: Frame) -> Float[Tensor, "b d"]:
        raise NotImplementedError

    if TYPE_CHECKING:
        __call__ = forward


@dataclass(frozen=True, kw_only=True)
class PoolSpec(Spec):
    """How a sequence becomes one vector."""

    def build(self, site: Site) -> Pool:
        raise NotImplementedError


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
