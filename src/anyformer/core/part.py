"""Base classes of the slots of a model: parts, norms, joins, embeddings, pools and heads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from anyformer.core.clusters import Cluster
from anyformer.core.frame import Frame, Memory, State
from anyformer.core.module import Borrowed, Module, Site, Source, Widths
from anyformer.core.spec import Spec
from anyformer.errors import SpecError

EMPTY: Mapping[str, Tensor] = MappingProxyType({})


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


class Embedding(Module):
    """Token ids -> vectors, and hidden states -> logits if a head is tied to it."""

    width: int
    """Width of its vectors. Positions, types and the entry norm act at this width, then `lift` projects to dim."""
    reads_neighbours: bool = False
    """True: the vector of a token depends on other tokens too, so a decoder that gets them one by one cannot use it."""

    def forward(self, tokens: Int[Tensor, "b t"], frame: Frame = Frame()) -> Float[Tensor, "b t w"]:
        raise NotImplementedError

    if TYPE_CHECKING:
        __call__ = forward

    def lift(self, x: Float[Tensor, "b t w"]) -> Float[Tensor, "b t d"]:
        """Projects from the embedding width to the model width."""
        return x

    def scores(self, h: Float[Tensor, "b t d"]) -> Float[Tensor, "b t v"]:
        """Logits of hidden states against every token: the output of a tied head."""
        return self.table_scores(self.lower(h))

    def score_flops(self, tokens: int) -> int:
        """FLOPs of `scores` that go through no `Linear`."""
        return self.table_flops(tokens)

    def table_scores(self, x: Float[Tensor, "b t w"]) -> Float[Tensor, "b t v"]:
        """Logits of vectors of the embedding width, for a head that projects to that width itself."""
        raise SpecError("this embedding has no single table to score against; `plain` and `factorized` have one.")

    def table_flops(self, tokens: int) -> int:
        """FLOPs of `table_scores` that go through no `Linear`."""
        raise SpecError("this embedding has no single table to score against; `plain` and `factorized` have one.")

    def table(self) -> Float[Tensor, "v w"] | None:
        """The matrix that `table_scores` multiplies with, for a loss in chunks; None if there is no single one."""
        return None

    def clusters(self) -> Sequence[Cluster]:
        """Clusters of words with a table each, for a head that scores them one by one; empty if there are none."""
        return ()

    def lower(self, h: Float[Tensor, "*n d"]) -> Float[Tensor, "*n w"]:
        """Projects from the model width to the embedding width, as `scores` does before the table."""
        return h


@dataclass(frozen=True, kw_only=True)
class EmbeddingSpec(Spec):
    """How token ids become vectors."""

    def build(self, site: Site, vocab: int) -> Embedding:
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


class LogitProduct(NamedTuple):
    """Logits that are x table^T + bias."""

    x: Float[Tensor, "*n w"]
    table: Float[Tensor, "v w"]
    bias: Float[Tensor, " v"] | None = None


class Head(Module):
    """Hidden states -> the output of the model, usually logits."""

    def forward(self, h: Float[Tensor, "b t d"], frame: Frame) -> Float[Tensor, "b ..."]:
        raise NotImplementedError

    if TYPE_CHECKING:
        __call__ = forward

    def named(self, name: str) -> "Head":
        """One of several heads by its name; the head itself if it is the only one."""
        return self

    def word_vectors(self) -> Float[Tensor, "v d"]:
        """The matrix W of scores h W^T, of a head whose spec has `own_vectors`."""
        raise NotImplementedError

    def product(self, h: Float[Tensor, "*n d"]) -> LogitProduct | None:
        """The matrices whose product is the logits, for a loss in chunks; None if the logits are no such product."""
        return None

    def pooled(self, h: Float[Tensor, "b t d"], frame: Frame) -> Float[Tensor, "b d"] | None:
        """The vector of each sequence, before any classes; None if the head does not pool."""
        return None

    def loss(
        self,
        h: Float[Tensor, "b t d"],
        frame: Frame,
        targets: Int[Tensor, "b ..."],
        weight: Float[Tensor, "b ..."],
        smoothing: float = 0.0,
        z: float = 0.0,
    ) -> Float[Tensor, ""]:
        """The weighted sum of cross-entropies with label smoothing, plus z lse^2. All logits at once; heads over a
        vocabulary do it in chunks."""
        logits = self(h, frame).flatten(0, -2).float()
        losses = F.cross_entropy(logits, targets.flatten(), reduction="none", label_smoothing=smoothing)
        losses = losses + z * logits.logsumexp(-1).square() if z else losses
        return (losses * weight.flatten()).sum()


@dataclass(frozen=True, kw_only=True)
class HeadSpec(Spec):
    """What follows the last layer."""

    scores_words: ClassVar[bool] = False
    """True if the output is a score for every token of the vocabulary."""
    chunked_loss: ClassVar[bool] = False
    """True if the backward pass of `Head.forward` needs all scores, but that of `Head.loss` only those of a chunk."""
    own_vectors: ClassVar[bool] = False
    """True if these scores are products with a matrix that belongs to the head: `Head.word_vectors`."""

    @property
    def views(self) -> tuple[str, ...]:
        """Names of the views that `named` returns: heads side by side, or directions of one head."""
        return ()

    @property
    def outcomes(self) -> int | None:
        """Number of classes that are scored for each sequence (if the head `pools`) or token; None without classes."""
        return None

    @property
    def has_probabilities(self) -> bool:
        """True if a softmax over the output is a distribution over words or classes."""
        return self.scores_words

    def named(self, name: str) -> "HeadSpec":
        """One of several heads by its name; the head itself if there is none of that name."""
        return self

    @property
    def tied(self) -> bool:
        """True: multiplies with the embedding's table, so the input must be as wide as the stream."""
        return False

    @property
    def pools(self) -> bool:
        """True: gives one output per sequence instead of one per token."""
        return False

    def classifier(self, classes: int, dim: int) -> "HeadSpec | None":
        """A head that scores classes from the vector of this one and shares its weights; None if it gives no vector."""
        return None

    def build(self, site: Site, embedding: Borrowed[Embedding], vocab: int) -> Head:
        raise NotImplementedError
