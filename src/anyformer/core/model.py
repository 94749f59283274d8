"""The base class of the three model shapes: the interface that training, decoding and the cost card rely on."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anyformer.core.frame import Frame, Memory
from anyformer.core.module import InitSpec, Module, initialise
from anyformer.core.part import Out
from anyformer.core.spec import Spec
from anyformer.core.states import State
from anyformer.errors import SpecError


class Model(Module):
    """Token ids in, the head's output (usually logits) out."""

    def forward(
        self, tokens: Int[Tensor, "b t"], frame: Frame = Frame(), state: State | None = None, *, logits: bool = True
    ) -> Out:
        """`logits=False` returns the hidden states instead of the head's output."""
        raise NotImplementedError

    if TYPE_CHECKING:
        __call__ = forward

    def logits(self, h: Float[Tensor, "b t d"], frame: Frame) -> Tensor:
        """The head's output for hidden states, for callers that need it at a few positions only."""
        raise NotImplementedError

    def encode(self, tokens: Int[Tensor, "b s"], frame: Frame = Frame()) -> Memory:
        """The encoder's output, as a decoder reads it."""
        raise SpecError("this model has no encoder; `encoder` and `encoder_decoder` have one.")

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        """An empty state for decoding up to max_len tokens."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class ModelSpec(Spec):
    """A complete model as a value: encoder, decoder or encoder-decoder."""

    @property
    def needs_source(self) -> bool:
        """True: it reads a source sequence through `encode` first."""
        return False

    @property
    def decodes(self) -> bool:
        """True: it generates token by token, from a state."""
        return True

    @property
    def memory_width(self) -> int | None:
        """Width of the encoder output that it can attend to; None: it cannot."""
        return None

    @property
    def scheme(self) -> InitSpec:
        """How its weights are initialised."""
        raise NotImplementedError

    def module(self) -> Model:
        """The modules on torch's default device, allocated but not initialised."""
        raise NotImplementedError

    def build(self, *, device: str | torch.device = "cpu", seed: int = 0) -> Model:
        """A new model: built on the meta device, allocated, then initialised tensor by tensor from (seed, name)."""
        with torch.device("meta"):
            model = self.module()
        if torch.device(device).type != "meta":
            model.to_empty(device=device)
            initialise(model, self.scheme, seed)
        return model
