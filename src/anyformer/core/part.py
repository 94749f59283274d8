"""The bases of every slot: what acts on a sequence, and what stands around it."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from anyformer.core.frame import Frame, Memory
from anyformer.core.module import Borrowed, Module
from anyformer.core.site import Site
from anyformer.core.spec import Spec
from anyformer.core.states import State
from anyformer.errors import SpecError

EMPTY: Mapping[str, Tensor] = MappingProxyType({})


class Out(NamedTuple):
    """What a call gives back."""

    y: Tensor
    state: State | None = None
    """The next state, when one was given."""
    losses: Mapping[str, Tensor] = EMPTY
    """What it asks for itself, such as a router's balance: means over the live tokens of the call, each with its share
    of the whole loss in it."""
    frame: Frame | None = None
    """Only when the part changed the length."""
    final: tuple[State, ...] = ()
    """From the parts of an encoder that read in one direction: the states in which they ended."""

    def with_y(self, y: Tensor) -> "Out":
        """All else as it is. (torch 2.11 cannot hand what `_replace` made out of a compiled graph.)"""
        return Out(y, self.state, self.losses, self.frame, self.final)


class Part(Module):
    """Anything that acts on a sequence. Training, prefill and decoding are the same call with different lengths."""

    width: int | None = None
    """Of what it gives; said by those that heed `Site.width`."""
    summary: int | None = None
    """Said by those whose state holds all that they have read in a few vectors [b n], the hidden one first, so that
    another part of their kind can go on from there: n."""

    def forward(self, x: Float[Tensor, "b t d"], frame: Frame, state: State | None = None) -> Out:
        raise NotImplementedError

    if TYPE_CHECKING:
        __call__ = forward

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        """An empty state. What depends on the encoder alone (cross keys) is computed here, once."""
        return ()

    def read_to_end(self, x: Float[Tensor, "b t d"], frame: Frame) -> Out:
        """The output for a whole sequence; a recurrent part also returns its final state in `Out.final`."""
        if self.summary is None:
            return self(x, frame)
        out = self(x, frame.with_positions(x), self.init_state(x.shape[0], x.shape[1], frame.memory))
        return out._replace(state=None, final=(out.state,))


@dataclass(frozen=True, kw_only=True)
class PartSpec(Spec):
    """What a branch does: mixes tokens, or works on each of them."""

    needs_inputs: ClassVar[bool] = False
    """True: the part reads `frame.inputs`, the input of the first layer, which the model then adds to the frame."""

    def build(self, site: Site) -> Part:
        raise NotImplementedError


class Norm(Module):
    """Keeps the scale of a stream in hand."""

    def forward(self, x: Float[Tensor, "b t d"], frame: Frame) -> Float[Tensor, "b t d"]:
        raise NotImplementedError

    if TYPE_CHECKING:
        __call__ = forward


@dataclass(frozen=True, kw_only=True)
class NormSpec(Spec):
    """How a stream is normalised."""

    def build(self, site: Site) -> Norm:
        raise NotImplementedError


class Join(Module):
    """How the output y of a branch meets its input x."""

    def forward(self, x: Float[Tensor, "b t d"], y: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        raise NotImplementedError

    if TYPE_CHECKING:
        __call__ = forward


@dataclass(frozen=True, kw_only=True)
class JoinSpec(Spec):
    """How a branch's output meets its input."""

    def build(self, site: Site) -> Join:
        raise NotImplementedError


class Embedding(Module):
    """Token ids -> vectors, and back to scores where a head is tied to it."""

    width: int
    """Of the vectors it gives: positions, types and the entry norm act there, then `lift` brings them to dim."""

    def forward(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, "b t w"]:
        raise NotImplementedError

    if TYPE_CHECKING:
        __call__ = forward

    def lift(self, x: Float[Tensor, "b t w"]) -> Float[Tensor, "b t d"]:
        """To the width of the stream."""
        return x

    def scores(self, h: Float[Tensor, "b t d"]) -> Float[Tensor, "b t v"]:
        """Each vector against every word: what a tied head uses."""
        raise NotImplementedError

    def score_flops(self, tokens: int) -> int:
        """FLOPs of `scores` that go through no `Linear`."""
        raise NotImplementedError

    def table_scores(self, x: Float[Tensor, "b t w"]) -> Float[Tensor, "b t v"]:
        """The same for vectors of its own width: what a head uses that comes down to that width by itself."""
        raise SpecError("this embedding has no single table to score against; `plain` and `factorized` have one.")

    def table_flops(self, tokens: int) -> int:
        """FLOPs of `table_scores` that go through no `Linear`."""
        raise SpecError("this embedding has no single table to score against; `plain` and `factorized` have one.")

    def table(self) -> Float[Tensor, "v w"] | None:
        """What `table_scores` multiplies with, for those who do so piece by piece; None: there is no single one."""
        return None

    def lower(self, h: Float[Tensor, "*n d"]) -> Float[Tensor, "*n w"]:
        """From the width of the stream to its own: what `scores` does before the table."""
        return h


@dataclass(frozen=True, kw_only=True)
class EmbeddingSpec(Spec):
    """How token ids become vectors."""

    def build(self, site: Site, vocab: int) -> Embedding:
        raise NotImplementedError


class Pool(Module):
    """A sequence -> one vector."""

    def forward(self, h: Float[Tensor, "b t d"], frame: Frame) -> Float[Tensor, "b d"]:
        raise NotImplementedError

    if TYPE_CHECKING:
        __call__ = forward


@dataclass(frozen=True, kw_only=True)
class PoolSpec(Spec):
    """How a sequence becomes one vector."""

    def build(self, site: Site) -> Pool:
        raise NotImplementedError


class Head(Module):
    """Hidden states -> what the model is asked for."""

    def forward(self, h: Float[Tensor, "b t d"], frame: Frame) -> Float[Tensor, "b ..."]:
        raise NotImplementedError

    if TYPE_CHECKING:
        __call__ = forward

    def named(self, name: str) -> "Head":
        """One of several heads; itself where there is only one."""
        return self

    def loss(
        self,
        h: Float[Tensor, "b t d"],
        frame: Frame,
        targets: Int[Tensor, "b ..."],
        weight: Float[Tensor, "b ..."],
        smoothing: float = 0.0,
        z: float = 0.0,
    ) -> Float[Tensor, ""]:
        """The weighted sum of cross-entropies, labels smoothed, plus z lse^2. Here with all logits; heads over many
        words do it piece by piece."""
        logits, wanted = self(h, frame).flatten(0, -2).float(), targets.flatten()
        losses = F.cross_entropy(logits, wanted, reduction="none", label_smoothing=smoothing)
        losses = losses + z * logits.logsumexp(-1).square() if z else losses
        return (losses * weight.flatten()).sum()


@dataclass(frozen=True, kw_only=True)
class HeadSpec(Spec):
    """What stands behind the last layer."""

    def build(self, site: Site, embedding: Borrowed[Embedding], vocab: int) -> Head:
        raise NotImplementedError
