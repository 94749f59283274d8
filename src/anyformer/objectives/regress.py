"""A number for each text: sum (w . p + c - y)^2, p = the pooled text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from anyformer.core import Model, ModelSpec
from anyformer.data.batching.batch import Batch
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.errors import DataError
from anyformer.objectives.objective import Loss, Objective, Verb
from anyformer.objectives.scoring import label_of, number_of, number_term, rows_count, rows_loss, score, with_classifier
from anyformer.objectives.transformations import Layout, lay, texts


@dataclass(frozen=True, kw_only=True)
class Regress(Objective, kind="regress"):
    """A number for each text, by squared error."""

    serves: ClassVar[tuple[Verb, ...]] = ("classify",)
    default_for: ClassVar[Mapping[str, tuple[str, ...]]] = {"numbers": ("decoder", "encoder", "encoder_decoder")}

    layout: Layout = Layout()
    """How a text becomes a row of tokens."""

    def adapt(self, model: ModelSpec) -> ModelSpec:
        return with_classifier(model, 1, 0.0, self.kind)

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("numbers",)

    def lay_out(self, ids: Sequence[int], words: Vocabulary, *, packed: bool) -> list[int]:
        return self.layout.one(ids, words).ids

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        if batch.source is not None:
            raise DataError('these data are pairs: use objective.kind = "sentence_pairs" with classes = 1.')
        rows = [self.layout.one(text, words) for text in texts(batch, words, self.kind)]
        return replace(lay(rows, words), labels=replace(batch.labels, label=number_of(batch, self.kind)))

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return rows_count(batch, batch, language=0.0)

    def loss(self, models: Mapping[str, Model], batch: Batch, rng: torch.Generator) -> Loss:
        scores, reading = score(models["model"], batch)
        return rows_loss(number_term(scores, label_of(batch)), models["model"], reading, batch, language=0.0)

    def predict(self, model: Model, batch: Batch) -> Tensor:
        return score(model, batch)[0]
