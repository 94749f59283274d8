"""The base of objectives that hold another one and add to its loss."""

from collections.abc import Mapping

import torch

from anyformer.core import Model, ModelSpec
from anyformer.data.batching.batch import Batch
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.objectives.objective import Objective


class WrappedObjective(Objective):
    """An objective around another one, which lays out and prepares the data, and whose model it trains."""

    objective: Objective

    def companions(self, model: ModelSpec) -> Mapping[str, ModelSpec]:
        return self.objective.companions(model)

    @property
    def pretrained(self) -> Mapping[str, str]:
        return self.objective.pretrained

    def check_pretrained(self, name: str, theirs: ModelSpec, model: ModelSpec) -> None:
        self.objective.check_pretrained(name, theirs, model)

    def projections(self, model: ModelSpec, theirs: Mapping[str, ModelSpec]) -> Mapping[str, Model]:
        return self.objective.projections(model, theirs)

    @property
    def reads_taps(self) -> bool:
        return self.objective.reads_taps

    def tie(self, models: Mapping[str, Model]) -> None:
        self.objective.tie(models)

    @property
    def relays(self) -> bool:
        return self.objective.relays

    @property
    def heads_vary(self) -> bool:
        return self.objective.heads_vary

    @property
    def parts(self) -> tuple[Objective, ...]:
        return self.objective.parts

    def views(self, model: Model) -> list[tuple[Objective, Model]]:
        return self.objective.views(model)

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        return self.objective.prepare(batch, words, rng)
