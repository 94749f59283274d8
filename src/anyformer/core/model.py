"""The base of the three shapes of model: what training, decoding and the cost card may rely on."""

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
    """Token ids in, logits (or whatever the head gives) out."""

    width: int
    """Width of the hidden states that `speak` takes. Set by models that can be in an ensemble."""

    def forward(
        self, tokens: Int[Tensor, "b t"], frame: Frame, state: State | None = None, *, logits: bool = True
    ) -> Out:
        """`logits=False` gives the hidden states instead of the head's output."""
        raise NotImplementedError

    if TYPE_CHECKING:
        __call__ = forward

    def speak(self, h: Float[Tensor, "b t d"], frame: Frame) -> Tensor:
        """What the head makes of hidden states: for those who need it at a few places only."""
        raise NotImplementedError

    def encode(self, tokens: Int[Tensor, "b s"], frame: Frame) -> Memory:
        """What a decoder may look at."""
        raise SpecError("this model has no encoder; `encoder` and `encoder_decoder` have one.")

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        """An empty state for decoding up to max_len tokens."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class ModelSpec(Spec):
    """A whole model, as a value: one of three shapes."""

    @property
    def needs_source(self) -> bool:
        """True: it reads a source sequence through `encode` first."""
        return False

    @property
    def decodes(self) -> bool:
        """True: it writes token by token, from a state."""
        return True

    @property
    def memory_width(self) -> int | None:
        """Width of the encoder's output that it can be given; None: it takes none."""
        return None

    @property
    def scheme(self) -> InitSpec:
        """How its weights are drawn."""
        raise NotImplementedError

    def module(self) -> Model:
        """The modules, on torch's current default device, with memory but without values."""
        raise NotImplementedError

    def build(self, *, device: str | torch.device = "cpu", seed: int = 0) -> Model:
        """A fresh model: made without memory, given memory, then filled tensor by tensor from (seed, name)."""
        with torch.device("meta"):
            model = self.module()
        if torch.device(device).type != "meta":
            model.to_empty(device=device)
            initialise(model, self.scheme, seed)
        return model
