"""A class, or a number, for each pair of texts: entailment, similarity, paraphrase.

entailment: score(premise <sep> hypothesis);  similarity: score(a <sep> b) + score(b <sep> a)          (GPT, figure 1)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

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
    number_of,
    number_term,
    rows_count,
    rows_loss,
    score,
    with_classifier,
    with_next_words,
)
from anyformer.objectives.transformations import InputRow, Layout, flat, lay_groups, texts


@dataclass(frozen=True, kw_only=True)
class SentencePairs(Objective, kind="sentence_pairs"):
    """A class, or a number, for each pair of texts."""

    serves: ClassVar[tuple[Verb, ...]] = ("classify",)
    default_for: ClassVar[Mapping[str, tuple[str, ...]]] = {"labelled_pair": ("encoder",)}

    classes: Count
    """Number of classes; 1: a number, learned by squared error."""
    order: Literal["one", "both"] = "one"
    """one: the first text before the second; both: each way once, and the scores added, so that order means nothing."""
    layout: Layout = Layout()
    """How a pair becomes a row of tokens."""
    language: Share = 0.0
    """How much the words of the texts count beside the class; 0.5 in GPT's fine-tuning, 0: not at all."""

    @classmethod
    def examples(cls) -> "tuple[SentencePairs, ...]":
        return cls(classes=3), cls(classes=2, order="both", language=0.5), cls(classes=1, order="both")

    @property
    def outcomes(self) -> int | None:
        return None if self.classes == 1 else self.classes

    def adapt(self, model: ModelSpec) -> ModelSpec:
        return with_classifier(model, self.classes, self.language, self.kind)

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("numbers",) if self.classes == 1 else ("classes",)

    def lay_out(self, ids: Sequence[int], words: Vocabulary, *, packed: bool) -> list[int]:
        return self.layout.one(ids, words).ids

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        if batch.source is None:
            raise DataError(
                "sentence_pairs needs two texts, and these data have one. Set data.source.target to the second's "
                'column or field, or use objective.kind = "classify".'
            )
        number = self.classes == 1
        label = number_of(batch, self.kind) if number else class_of(batch, self.classes, self.kind)
        pairs = zip(texts(batch.source, words, self.kind), texts(batch, words, self.kind), strict=True)
        laid = lay_groups([self._rows(*pair, words) for pair in pairs], words)
        return replace(laid, labels=replace(batch.labels, label=label))

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return rows_count(batch, with_next_words(flat(batch)), self.language)

    def loss(self, models: Mapping[str, Model], batch: Batch, rng: torch.Generator) -> Loss:
        rows, label = with_next_words(flat(batch)), label_of(batch)
        scores, reading = score(models["model"], rows)
        scores = _added_up(scores, len(label))
        term = number_term(scores, label) if self.classes == 1 else class_term(scores, label)
        return rows_loss(term, models["model"], reading, rows, self.language)

    def predict(self, model: Model, batch: Batch) -> Tensor:
        return _added_up(score(model, flat(batch))[0], len(batch.tokens))

    def _rows(self, first: list[int], second: list[int], words: Vocabulary) -> tuple[InputRow, ...]:
        both = self.layout.both(first, second, words)
        return both if self.order == "both" else both[:1]


def _added_up(scores: Tensor, pairs: int) -> Tensor:
    """Scores of the rows of each pair, one or two, as their sum [b c]."""
    both: Tensor = scores.unflatten(0, (pairs, -1))  # [b orders c]
    return both.sum(1)
