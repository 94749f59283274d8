"""The base of every way to rank units and weights, and the batches of training data that some of them need."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from anyformer.core import Model, Spec, decode
from anyformer.core.fields import did_you_mean
from anyformer.data.preparation.pipeline import prepared_for
from anyformer.data.sources.named_source import relocated
from anyformer.errors import DataError, SpecError
from anyformer.run import Run
from anyformer.shrink.unit_group import UnitGroup
from anyformer.training.loop.feed import Feed, Loader, PreparedBatch, Purpose, generator
from anyformer.training.loop.loss_module import build_models
from anyformer.training.runs import checkpoint


class Evidence:
    """Batches of the training data of a run, and the loss of a model on them."""

    def __init__(self, run: Run, cache: Path | None = None, seed: int = 0):
        self.run, self.cache, self.seed = run, cache, seed
        self._batches: list[PreparedBatch] = []
        self._others: Mapping[str, Model] = {}

    def batches(self, count: int) -> Sequence[PreparedBatch]:
        """The first batches of the training split, in an order that follows from the seed."""
        if len(self._batches) < count:
            recipe = self.run.recipe
            if recipe.data is None or recipe.objective is None:
                raise DataError(
                    f"{self.run.folder}: was imported, so it has no training data to rank by. Use --by magnitude, or "
                    f"train it first: anyformer train DATA init_from={self.run.folder}"
                )
            data = relocated(recipe.data, self.run.environment.get("began_in"))
            prepared = prepared_for(data, self.cache)
            loader = Loader(prepared=prepared, seed=self.seed, batch_tokens=recipe.train.batch_tokens)
            self._batches = list(islice(Feed(loader, recipe.objective, self.seed, prefetch=False), count))
            models = build_models(recipe, recipe.objective, torch.device("cpu"))
            self._others = {name: model.eval() for name, model in models.items() if name != "model"}
            stored = checkpoint.read(self.run.checkpoint(), only=tuple(self._others)) if self._others else {}
            for name, tensors in stored.items():  # a shrunk run has stored none of them
                checkpoint.load_weights(self._others[name], tensors, partly=True)
        return self._batches[:count]

    def loss(self, model: Model, batch: PreparedBatch) -> Tensor:
        """The loss of one batch: the sum of all terms, each a mean over what counts."""
        objective = self.run.recipe.objective
        assert objective is not None
        rng = generator(self.seed, batch.step, Purpose.EVALUATE)
        terms = objective.loss({**self._others, "model": model}, batch.batch, rng)
        means = [term.sum / batch.counts[name] for name, term in terms.items() if batch.counts.get(name)]
        return torch.stack(means).sum()

    @torch.no_grad()
    def mean_loss(self, model: Model, count: int) -> float:
        """The mean loss over the first batches."""
        losses = [self.loss(model, batch).item() for batch in self.batches(count)]
        return math.fsum(losses) / len(losses)


@dataclass(frozen=True, kw_only=True)
class Importance(Spec):
    """How pruning ranks: what has the lowest importance is removed."""

    def of_units(self, model: Model, groups: Sequence[UnitGroup], evidence: Evidence) -> list[Tensor]:
        """The importance of each unit, a tensor for each group."""
        raise NotImplementedError

    def of_weights(self, model: Model, weights: Sequence[Tensor], evidence: Evidence) -> list[Tensor]:
        """The importance of each single weight, a tensor of the shape of each matrix."""
        raise NotImplementedError


def importance_of(name: str, seed: int = 0) -> Importance:
    """A way to rank by its name, the random one with a seed."""
    Importance.load_kinds()
    if name not in Importance.kinds:
        raise SpecError(f"--by {name}: pruning cannot rank like that.{did_you_mean(name, Importance.kinds)}")
    return decode(Importance, {"kind": name, **({"seed": seed} if name == "random" else {})})
