"""A class for each text: fine-tuning with one linear layer on top, all weights learning.

P(y | x) = softmax(W_y p),  p = the pooled text;  L3 = L2 + lambda L1          (GPT, section 3.2)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from anyformer.core import Count, Model, ModelSpec
from anyformer.data.batching.batch import Batch
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.errors import DataError
from anyformer.objectives.objective import Loss, Objective, Verb
from anyformer.objectives.scoring import (
    Share,
    class_of,
    class_term,
    label_of,
    rows_count,
    rows_loss,
    score,
    with_classifier,
    with_next_words,
)
from anyformer.objectives.transformations import Layout, lay, texts


@dataclass(frozen=True, kw_only=True)
class Classify(Objective, kind="classify"):
    """A class for each text."""

    serves: ClassVar[tuple[Verb, ...]] = ("classify",)
    default_for: ClassVar[Mapping[str, tuple[str, ...]]] = {"classes": ("decoder", "encoder", "encoder_decoder")}

    classes: Count
    """Number of classes."""
    layout: Layout = Layout()
    """How a text becomes a row of tokens."""
    language: Share = 0.0
    """How much the words of the text count beside its class; 0.5 in GPT's fine-tuning, 0: not at all."""

    @classmethod
    def examples(cls) -> "tuple[Classify, ...]":
        return cls(classes=3), cls(classes=2, language=0.5)

    @property
    def outcomes(self) -> int:
        return self.classes

    def adapt(self, model: ModelSpec) -> ModelSpec:
        return with_classifier(model, self.classes, self.language, self.kind)

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("classes",)

    def lay_out(self, ids: Sequence[int], words: Vocabulary, *, packed: bool) -> list[int]:
        return self.layout.one(ids, words).ids

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        if batch.source is not None:
            raise DataError('these data are pairs: use objective.kind = "sentence_pairs".')
        rows = [self.layout.one(text, words) for text in texts(batch, words, self.kind)]
        laid = with_next_words(lay(rows, words))
        return replace(laid, labels=replace(batch.labels, label=class_of(batch, self.classes, self.kind)))

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return rows_count(batch, batch, self.language)

    def loss(self, models: Mapping[str, Model], batch: Batch, rng: torch.Generator) -> Loss:
        scores, reading = score(models["model"], batch)
        term = class_term(scores, label_of(batch))
        return rows_loss(term, models["model"], reading, batch, self.language)

    def predict(self, model: Model, batch: Batch) -> Tensor:
        return score(model, batch)[0]
