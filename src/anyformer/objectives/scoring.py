"""Objectives that score texts, as in GPT's fine-tuning: what classes, numbers, pairs and choices have in common.

P(y | x) = softmax(W_y h_last),  L2 = sum log P(y | x),  L3 = L2 + lambda L1 with L1 the words of the same text
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import HeadSpec, Model, ModelSpec, Range
from anyformer.data.batching.batch import Batch
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.errors import DataError, SpecError
from anyformer.models.single import Single
from anyformer.objectives.objective import Loss, Objective, Term
from anyformer.objectives.transformations import Layout
from anyformer.objectives.words import (
    WORDS,
    HiddenStates,
    parts_count,
    parts_term,
    read,
    require_single_text,
    row_count,
    words_count,
    words_head,
    words_term,
)
from anyformer.parts.heads.classifier import Classifier
from anyformer.parts.heads.several import Several
from anyformer.parts.pools.first import First
from anyformer.parts.pools.last import Last

Share = Annotated[float, Range(low=0.0)]
SCORE = "label"
"""Name of the head with the scores, and of its term."""


class TextScoring(Objective):
    """An objective with a label for each text: the class or the number that the scores of its rows predict."""

    serves = ("classify",)

    layout: Layout
    language: float = 0.0
    mean: float = 0.0
    deviation: float = 1.0

    @property
    def loss_unit(self) -> str | None:
        if "numbers" not in self.metrics:
            return None
        return (
            f"squared error of (number - {self.mean:.6g}) / {self.deviation:.6g}; 1 is no better than always the mean"
        )

    def rows(self, batch: Batch) -> Batch:
        """The rows that are read for a prepared batch, with the next words as targets."""
        return batch

    def combine(self, scores: Tensor, batch: Batch) -> Tensor:
        """Scores of all rows as scores of the texts [b c]."""
        return scores

    def adapt(self, model: ModelSpec) -> ModelSpec:
        single = require_single_text(model, self.kind)
        head = _classifier(single, self.outcomes or 1)  # one score for a number, or for an answer among several
        if not self.language:
            return replace(single, head=head)
        if not single.causal:
            raise SpecError(
                f"{self.kind}: language={self.language:g}: an {single.kind} sees the words that it should predict. "
                f"Use a decoder, or set objective.language = 0."
            )
        return replace(single, head=Several(heads={SCORE: head, WORDS: words_head(single)}, main=SCORE))

    def lay_out(self, ids: Sequence[int], words: Vocabulary, *, packed: bool) -> list[int]:
        return self.layout.one(ids, words).ids

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        rows = self.rows(batch)
        words = words_count(rows) if self.language else {}
        return {SCORE: row_count(batch), **words, **parts_count(rows)}

    def loss(self, models: Mapping[str, Model], batch: Batch, rng: torch.Generator) -> Loss:
        rows, label, model = self.rows(batch), label_of(batch), models["model"]
        scores, reading = self._score(model, rows, batch)
        if label.is_floating_point():
            standard = (label.to(scores) - self.mean) / self.deviation
            losses = F.mse_loss(scores[:, 0], standard, reduction="none")
        else:
            losses = F.cross_entropy(scores, label, reduction="none")
        total = losses.sum() if batch.labels.weight is None else losses @ batch.labels.weight.to(losses)
        words = words_term(model, reading, rows) if self.language else {}
        words = {name: term.scaled(self.language) for name, term in words.items()}
        return {SCORE: Term(total, row_count(batch)), **words, **parts_term(rows, reading)}

    def predict(self, model: Model, batch: Batch) -> Tensor:
        return self.mean + self.deviation * self._score(model, self.rows(batch), batch)[0]

    def _score(self, model: Model, rows: Batch, batch: Batch) -> tuple[Tensor, HiddenStates]:
        """The scores of each text [b c], and the hidden states that they come from."""
        reading = read(model, rows)
        scores = reading.through(model.output_head().named(SCORE))
        return self.combine(scores.to(torch.promote_types(scores.dtype, torch.float32)), batch), reading


def _classifier(model: Single, classes: int) -> HeadSpec:
    head = model.head.named(SCORE)
    if not head.pools or head.outcomes is None:
        pool = Last() if model.causal else First()  # the token that has seen all the others
        return head.classifier(classes, model.dim) or Classifier(classes=classes, pool=pool)
    if head.outcomes != classes:
        raise SpecError(f"the model's head has {head.outcomes} classes, the objective {classes}. Make them equal.")
    return head


def label_of(batch: Batch) -> Tensor:
    """The label of each row of a prepared batch."""
    assert batch.labels.label is not None
    return batch.labels.label


def class_of(batch: Batch, classes: int, objective: str) -> Tensor:
    """The class id of each row [b], checked."""
    label = batch.labels.label
    if label is None:
        raise DataError(
            f"{objective} needs a label for each text, and these data have none. Set data.source.label to a column or "
            f"field."
        )
    if label.is_floating_point() or ((label < 0) | (label >= classes)).any():
        values = label.unique().tolist()
        raise DataError(f"{objective}: labels must be whole numbers from 0 to {classes - 1}, got {values}.")
    return label


def number_of(batch: Batch, objective: str) -> Tensor:
    """The number of each row [b], checked."""
    measured, label = batch.labels.number, batch.labels.label
    number = label if measured is None else measured
    if number is None or (measured is None and not number.is_floating_point()):
        what = "have no labels" if number is None else "have classes"
        raise DataError(
            f"{objective} needs a number for each text, and these data {what}. Set data.source.label to a column or "
            f'field of numbers, or use objective.kind = "classify".'
        )
    return number.float()


def with_next_words(batch: Batch) -> Batch:
    """The batch with the next token as target of each position."""
    weight = batch.valid.roll(-1, dims=1).float()
    weight[:, -1] = 0.0
    return replace(batch, targets=batch.tokens.roll(-1, dims=1), weight=weight)
