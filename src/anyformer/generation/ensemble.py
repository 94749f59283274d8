"""An ensemble: several models that decode as one, at every step.

probabilities: p(w) = 1/M sum_m p_m(w)        log_probabilities: p(w) = prod_m p_m(w)^(1/M) / Z, Z: sum over all words

It is a model itself, so greedy decoding, sampling and beam search work with it.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from anyformer.core import EMPTY, Frame, Memory, Model, Out, State
from anyformer.errors import SpecError


class Ensemble(Model):
    """The mean of the probabilities of models with one vocabulary; its logits are the logarithms of the mean.

    With `mean="log_probabilities"` it is their geometric mean: a word that one model excludes is excluded.
    """

    def __init__(self, models: Sequence[Model], mean: Literal["probabilities", "log_probabilities"] = "probabilities"):
        super().__init__()
        if not models:
            raise SpecError("an ensemble needs at least one model.")
        self.models = nn.ModuleList(models)
        self.mean = mean
        self.width = sum(model.width for model in models)

    def forward(
        self, tokens: Tensor, frame: Frame = Frame(), state: State | None = None, *, logits: bool = True
    ) -> Out:
        """Without logits: the hidden states of all models side by side. `frame.memory` comes from `encode`."""
        states = [None] * len(self.models) if state is None else state
        frames = [frame] * len(self.models)
        if frame.memory is not None:
            frames = [replace(frame, memory=memory) for memory in frame.memory.final]
        calls = zip(self._models(), frames, states, strict=True)
        outs = [model(tokens, each, member, logits=False) for model, each, member in calls]
        h = torch.cat([out.y for out in outs], dim=-1)
        y = self.logits(h, frame) if logits else h
        return Out(y, None if state is None else tuple(out.state for out in outs), EMPTY)

    @property
    def needs_source(self) -> bool:
        return any(model.needs_source for model in self._models())

    def logits(self, h: Tensor, frame: Frame) -> Tensor:
        models = self._models()
        parts = h.split([model.width for model in models], dim=-1)
        logits = [model.logits(part, frame).float() for model, part in zip(models, parts, strict=True)]
        if any(each.shape != logits[0].shape for each in logits):
            sizes = ", ".join(str(each.shape[-1]) for each in logits)
            raise SpecError(f"an ensemble needs one vocabulary, but its models have {sizes} words.")
        logs = torch.stack([each.log_softmax(-1) for each in logits])
        if self.mean == "log_probabilities":
            return logs.mean(0).log_softmax(-1)
        return logs.logsumexp(0) - math.log(len(logits))

    def encode(self, tokens: Tensor, frame: Frame = Frame()) -> Memory:
        """The memory of the first model, with the memories of all in `final`."""
        memories = tuple(model.encode(tokens, frame) for model in self._models())
        return Memory(x=memories[0].x, valid=memories[0].valid, final=memories)

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        memories = [None] * len(self.models) if memory is None else memory.final
        pairs = zip(self._models(), memories, strict=True)
        return tuple(model.init_state(batch, max_len, each) for model, each in pairs)

    def _models(self) -> list[Model]:
        return list(self.models)  # type: ignore[arg-type]
