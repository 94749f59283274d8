"""The base of every model, with the methods and facts that training, decoding and the cost card use, and the bases of
its two ends: the embedding and the head."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from anyformer.core.clusters import Cluster
from anyformer.core.frame import Frame, Memory, State
from anyformer.core.module import Borrowed, InitSpec, Module, Site, initialise
from anyformer.core.part import Out
from anyformer.core.spec import Spec
from anyformer.errors import SpecError


class Embedding(Module):
    """Token ids -> vectors, and hidden states -> logits if a head is tied to it."""

    width: int
    """Width of its vectors. Positions, types and the entry norm act at this width, then `lift` projects to dim."""
    reads_ahead: bool = False
    """True: the vector of a token depends on later tokens, so a decoder cannot use it."""
    remembers: bool = False
    """True: the vector of a token depends on earlier tokens, so a decoder needs `init_state` and `continued`."""

    def forward(self, tokens: Int[Tensor, "b t"], frame: Frame = Frame()) -> Float[Tensor, "b t w"]:
        raise NotImplementedError

    if TYPE_CHECKING:
        __call__ = forward

    def init_state(self, batch: int) -> State:
        """The state before any token."""
        raise NotImplementedError

    def continued(self, tokens: Int[Tensor, "b t"], frame: Frame, state: State) -> tuple[Float[Tensor, "b t w"], State]:
        """The vectors of tokens that follow those of a state, and the state after them."""
        raise NotImplementedError

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


class LogitProduct(NamedTuple):
    """Logits that are x table^T + bias."""

    x: Float[Tensor, "*n w"]
    table: Float[Tensor, "v w"]
    bias: Float[Tensor, " v"] | None = None


class Head(Module):
    """Hidden states -> the output of the model, usually logits."""

    continues_text: bool = True
    """False if the output is no score of next words: of another head, or of a model that reads in both directions."""

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


class Model(Module):
    """Token ids in, the head's output (usually logits) out."""

    width: int
    """Width of the hidden states that `logits` takes. Set by models that can be in an ensemble."""

    def forward(
        self, tokens: Int[Tensor, "b t"], frame: Frame = Frame(), state: State | None = None, *, logits: bool = True
    ) -> Out:
        """`logits=False` returns the hidden states instead of the head's output."""
        raise NotImplementedError

    if TYPE_CHECKING:
        __call__ = forward

    def logits(self, h: Float[Tensor, "b t d"], frame: Frame) -> Tensor:
        """The head's output for some hidden states, for callers that need it at a few positions only."""
        raise NotImplementedError

    def output_head(self) -> Head:
        """The head behind the last layer."""
        raise NotImplementedError

    @property
    def needs_source(self) -> bool:
        """True if a source sequence is read through `encode` before the target."""
        return False

    def stack_models(self) -> "Mapping[str, Model]":
        """The models of single stacks that it consists of, by name, in the order in which they run."""
        raise NotImplementedError

    def encode(self, tokens: Int[Tensor, "b s"], frame: Frame = Frame()) -> Memory:
        """The memory that a decoder attends to: one vector for each source token."""
        raise SpecError("this model has no encoder; `encoder` and `encoder_decoder` have one.")

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        """An empty state for decoding up to max_len tokens."""
        raise NotImplementedError


class WrappedModel(Model):
    """A model seen through one head; everything but `forward` is delegated to the inner model."""

    def __init__(self, inner: Model, head: Head | None = None):
        super().__init__()
        self.inner, self.head, self.width = inner, head or inner.output_head(), inner.width
        self.training = inner.training

    def logits(self, h: Tensor, frame: Frame) -> Tensor:
        return self.head(h, frame)

    def output_head(self) -> Head:
        return self.head

    @property
    def needs_source(self) -> bool:
        return self.inner.needs_source

    def stack_models(self) -> Mapping[str, Model]:
        return self.inner.stack_models()

    def encode(self, tokens: Tensor, frame: Frame = Frame()) -> Memory:
        return self.inner.encode(tokens, frame)

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        return self.inner.init_state(batch, max_len, memory)


class HeadView(WrappedModel):
    """A model with another head than its main one."""

    def forward(
        self, tokens: Tensor, frame: Frame = Frame(), state: State | None = None, *, logits: bool = True
    ) -> Out:
        out = self.inner(tokens, frame, state, logits=False)
        return out.with_y(self.head(out.y, out.frame or frame)) if logits else out


@runtime_checkable  # the tests check annotated types at run time
class StackFacts(Protocol):
    """The facts about one stack of a model that other layers may read."""

    @property
    def vocabulary(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def max_len(self) -> int: ...
    @property
    def causal(self) -> bool: ...
    @property
    def head(self) -> HeadSpec: ...


@dataclass(frozen=True, kw_only=True)
class ModelSpec(Spec):
    """A whole model, as a value: one stack, or several that read from each other."""

    stack_paths: ClassVar[tuple[str, ...]] = ("",)
    """The fields that hold its stacks, in the order in which they run; an empty path is the model itself."""
    learns: ClassVar[bool] = True
    """False: its weights cannot be trained."""

    @property
    def stacks(self) -> Mapping[str, StackFacts]:
        """Its stacks by name, in the order in which they run; the last one has the head."""
        raise NotImplementedError

    @property
    def input_stack(self) -> StackFacts:
        """The stack that reads a text first: the encoder, or the only one."""
        return next(iter(self.stacks.values()))

    @property
    def output_stack(self) -> StackFacts:
        """The stack that has the head: the decoder, or the only one."""
        return list(self.stacks.values())[-1]

    def with_head(self, head: HeadSpec) -> "ModelSpec":
        """The same model with another head."""
        raise NotImplementedError

    @property
    def needs_source(self) -> bool:
        """True if a source sequence is read through `encode` before the target."""
        return False

    @property
    def decodes(self) -> bool:
        """True if it can generate token by token, from a state."""
        return True

    @property
    def memory_width(self) -> int | None:
        """Width of the encoder output that its cross branches read; None if it has none."""
        return None

    @property
    def scheme(self) -> InitSpec:
        """How its fresh weights are drawn."""
        raise NotImplementedError

    def module(self) -> Model:
        """The modules on torch's default device, allocated but not initialised."""
        raise NotImplementedError

    def build(self, *, device: str | torch.device = "cpu", seed: int = 0) -> Model:
        """A new model: built on the meta device, allocated, then initialised tensor by tensor from (seed, name)."""
        with torch.device("meta"), refuse_overflow():
            model = self.module()
        if torch.device(device).type != "meta":
            # As `to_empty`, whose `empty_like` of a meta tensor imports sympy, half a second for every command.
            model._apply(lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device=device))  # type: ignore[no-untyped-call]
            initialise(model, self.scheme, seed)
        return model


@contextmanager
def refuse_overflow() -> Iterator[None]:
    """SpecError where the size of a tensor does not fit into 64 bits, which torch finds even without memory."""
    try:
        yield
    except (RuntimeError, TypeError, OverflowError) as error:
        if "overflow" not in str(error).lower():
            raise
        sizes = str(error).splitlines()[0]
        raise SpecError(f"a tensor of this model has more bytes than 64 bits can count ({sizes}).") from None
