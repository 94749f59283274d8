"""A class for each token: parts of speech, names, any tags.

P(y_t | x) = softmax(W_y h_t + c); tokens without a tag (pieces of a word after the first) do not count
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from anyformer.core import Count, Model, ModelSpec
from anyformer.data.batching.batch import Batch
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.errors import DataError, SpecError
from anyformer.objectives.objective import Loss, Objective, Term
from anyformer.objectives.words import parts_count, parts_term, read, require_single_text
from anyformer.parts.heads.token_classifier import TokenClassifier


@dataclass(frozen=True, kw_only=True)
class TokenLabels(Objective, kind="token_labels"):
    """A class for each token."""

    serves = ("classify",)
    metrics = ("tags",)
    default_for: ClassVar[Mapping[str, tuple[str, ...]]] = {"tags": ("decoder", "encoder", "encoder_decoder")}

    classes: Count
    """Number of tags."""

    @classmethod
    def examples(cls) -> "tuple[TokenLabels, ...]":
        return (cls(classes=3),)

    @property
    def outcomes(self) -> int:
        return self.classes

    def adapt(self, model: ModelSpec) -> ModelSpec:
        single = require_single_text(model, self.kind)
        if single.head.pools or single.head.outcomes is None:
            return replace(single, head=TokenClassifier(classes=self.classes))
        if single.head.outcomes != self.classes:
            raise SpecError(f"the model's head has {single.head.outcomes} classes, the objective {self.classes}.")
        return single

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        tags = batch.labels.tags
        if tags is None:
            raise DataError(
                "token_labels needs a tag for each word, and these data have none. Set data.source.tags to their "
                "column or field."
            )
        if (tags >= self.classes).any():
            raise DataError(f"token_labels: tags must be below classes={self.classes}, got {tags.max()}.")
        return replace(batch, targets=tags.clamp(min=0), weight=((tags >= 0) & batch.counted).float())

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        assert batch.weight is not None
        return {"tags": batch.weight.sum(), **parts_count(batch)}

    def loss(self, models: Mapping[str, Model], batch: Batch, rng: torch.Generator) -> Loss:
        assert batch.weight is not None and batch.targets is not None
        reading, head = read(models["model"], batch), models["model"].output_head()
        total = head.loss(reading.h, reading.frame, batch.targets, batch.weight)
        return {"tags": Term(total, batch.weight.sum()), **parts_term(batch, reading)}

    def predict(self, model: Model, batch: Batch) -> Tensor:
        return read(model, batch).through(model.output_head())
