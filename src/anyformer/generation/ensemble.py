"""Several models that speak as one: p(w) = 1/M sum_m p_m(w), at every step.

It is a model itself, so that whatever writes with one writes with many: greedy, at random, by beam search.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from anyformer.core import EMPTY, Frame, Memory, Model, Out, State
from anyformer.errors import SpecError


class Ensemble(Model):
    """The mean of the probabilities of models with one vocabulary; its logits are logarithms of it."""

    def __init__(self, models: Sequence[Model]):
        super().__init__()
        if not models:
            raise SpecError("an ensemble needs at least one model.")
        self.models = nn.ModuleList(models)
        self.widths: list[int] = []

    def forward(
        self, tokens: Tensor, frame: Frame = Frame(), state: State | None = None, *, logits: bool = True
    ) -> Out:
        """Without logits the hidden states of all, side by side; `frame.memory` is what `encode` gave."""
        states = [None] * len(self.models) if state is None else state
        frames = [frame] * len(self.models)
        if frame.memory is not None:
            frames = [replace(frame, memory=memory) for memory in frame.memory.final]
        calls = zip(self._models(), frames, states, strict=True)
        outs = [model(tokens, each, own, logits=False) for model, each, own in calls]
        self.widths = [out.y.shape[-1] for out in outs]
        h = torch.cat([out.y for out in outs], dim=-1)
        y = self.logits(h, frame) if logits else h
        return Out(y, None if state is None else tuple(out.state for out in outs), EMPTY)

    def logits(self, h: Tensor, frame: Frame) -> Tensor:
        pairs = zip(self._models(), h.split(self.widths, dim=-1), strict=True)
        voices = [model.logits(own, frame).float() for model, own in pairs]
        if any(voice.shape != voices[0].shape for voice in voices):
            sizes = ", ".join(str(voice.shape[-1]) for voice in voices)
            raise SpecError(f"an ensemble speaks one vocabulary, but its models have {sizes} words.")
        logs = torch.stack([voice.log_softmax(-1) for voice in voices])
        return logs.logsumexp(0) - math.log(len(voices))

    def encode(self, tokens: Tensor, frame: Frame = Frame()) -> Memory:
        """Each reads for itself; what it found is in `final`."""
        memories = tuple(model.encode(tokens, frame) for model in self._models())
        return Memory(x=memories[0].x, valid=memories[0].valid, final=memories)

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        memories = [None] * len(self.models) if memory is None else memory.final
        pairs = zip(self._models(), memories, strict=True)
        return tuple(model.init_state(batch, max_len, own) for model, own in pairs)

    def _models(self) -> list[Model]:
        return list(self.models)  # type: ignore[arg-type]
