"""The base of every model: the methods and facts that training, decoding and the cost card use."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anyformer.core.frame import Frame, Memory, State
from anyformer.core.module import InitSpec, Module, initialise
from anyformer.core.part import Head, HeadSpec, Out
from anyformer.core.spec import Spec
from anyformer.errors import SpecError


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
