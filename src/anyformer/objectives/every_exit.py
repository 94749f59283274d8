"""A loss at every exit of a model, so that its head can answer after inner layers too.

L = L_N + weight mean_n L_n,  n: the inner exits, N: the last layer          (arXiv 1709.01686)
L_n is the loss of another objective if the head reads the hidden states of exit n. All exits share one pass.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Frame, Memory, Model, ModelSpec, Out, State, WrappedModel, kind_of
from anyformer.data.batching.batch import Batch
from anyformer.errors import SpecError
from anyformer.models.exits import Exits
from anyformer.models.single import stacks_of
from anyformer.objectives.objective import Loss, Objective, Term
from anyformer.objectives.scoring import Share
from anyformer.objectives.words import PARTS
from anyformer.objectives.wrapped import WrappedObjective


@dataclass(frozen=True, kw_only=True)
class EveryExit(WrappedObjective, kind="every_exit"):
    """Another objective, with a loss at every exit of the model (`model.exits`)."""

    objective: Objective
    """The objective at each exit."""
    weight: Share = 1.0
    """Weight of the mean loss of the inner exits beside that of the last layer."""

    @classmethod
    def examples(cls) -> "tuple[EveryExit, ...]":
        return (cls(objective=kind_of(Objective, "classify").examples()[0]),)

    def adapt(self, model: ModelSpec) -> ModelSpec:
        adapted = self.objective.adapt(model)
        if self.objective.companions(adapted):
            raise SpecError(f"every_exit: {self.objective.kind} trains more than one model. Use another objective.")
        if list(stacks_of(adapted).values())[-1].exits is not None:
            return adapted
        return adapted.with_(".".join(filter(None, (adapted.stack_paths[-1], "exits"))), Exits())

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        last = self.objective.counts(batch)
        return {**last, **{_inner(name): count for name, count in last.items() if name != PARTS}}

    def loss(self, models: Mapping[str, Model], batch: Batch, rng: torch.Generator) -> Loss:
        if not models["model"].training:  # the loss of the answers, whichever exit each of them comes from
            return self.objective.loss(models, batch, rng)
        recorded = _RecordedCalls(models["model"])
        last = self.objective.loss({**models, "model": recorded}, batch, rng)
        sums = {name: torch.zeros_like(term.sum) for name, term in last.items() if name != PARTS}
        exits = len(recorded.calls[0][0].layers)
        for number in range(exits):
            terms = self.objective.loss({**models, "model": _AtExit(recorded, number)}, batch, rng)
            sums = {name: total + terms[name].sum for name, total in sums.items()}
        factor = self.weight / exits
        return {**last, **{_inner(name): Term(factor * total, last[name].weight) for name, total in sums.items()}}


def _inner(term: str) -> str:
    """Name of the term of the inner exits."""
    return f"exits_{term}"


class _RecordedCalls(WrappedModel):
    """A model that keeps the results of its calls."""

    def __init__(self, inner: Model):
        super().__init__(inner)
        self.calls: list[tuple[Out, Frame]] = []
        self.memories: list[Memory] = []

    def forward(
        self, tokens: Tensor, frame: Frame = Frame(), state: State | None = None, *, logits: bool = True
    ) -> Out:
        out = self.inner(tokens, frame, state, logits=False)
        self.calls.append((out, out.frame or frame))
        return out.with_y(self.head(out.y, out.frame or frame)) if logits else out

    def encode(self, tokens: Tensor, frame: Frame = Frame()) -> Memory:
        self.memories.append(self.inner.encode(tokens, frame))
        return self.memories[-1]


class _AtExit(WrappedModel):
    """The same calls again, in the same order, with the hidden states of one inner exit; nothing is computed anew."""

    def __init__(self, recorded: _RecordedCalls, number: int):
        super().__init__(recorded.inner)
        self.number = number
        self.calls: Iterator[tuple[Out, Frame]] = iter(recorded.calls)
        self.memories: Iterator[Memory] = iter(recorded.memories)

    def forward(
        self, tokens: Tensor, frame: Frame = Frame(), state: State | None = None, *, logits: bool = True
    ) -> Out:
        out, frame = next(self.calls)
        h = out.layers[self.number]
        return out.with_y(self.head(h, frame) if logits else h)

    def encode(self, tokens: Tensor, frame: Frame = Frame()) -> Memory:
        return next(self.memories)
