"""The right one of several answers: each is read with its context and scored, softmax over the scores.

P(k | context) = softmax_k(w . h(context <sep> answer_k))          (GPT, figure 1)
"""

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
from anyformer.objectives.transformations import GroupedRows, Layout, choice_texts, flat, lay_groups, texts


@dataclass(frozen=True, kw_only=True)
class MultipleChoice(Objective, kind="multiple_choice"):
    """The right one of several answers to a text."""

    serves: ClassVar[tuple[Verb, ...]] = ("classify",)
    default_for: ClassVar[Mapping[str, tuple[str, ...]]] = {"choices": ("decoder", "encoder", "encoder_decoder")}

    layout: Layout = Layout()
    """How a text and an answer become a row of tokens."""
    language: Share = 0.0
    """How much the words of the texts count beside the choice; 0.5 in GPT's fine-tuning, 0: not at all."""

    @classmethod
    def examples(cls) -> "tuple[MultipleChoice, ...]":
        return cls(), cls(language=0.5)

    def adapt(self, model: ModelSpec) -> ModelSpec:
        return with_classifier(model, 1, self.language, self.kind)

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("classes",)

    def lay_out(self, ids: Sequence[int], words: Vocabulary, *, packed: bool) -> list[int]:
        return self.layout.one(ids, words).ids

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        answers = choice_texts(batch, words, self.kind)
        offered = torch.tensor([bool(answer) for row in answers for answer in row], dtype=torch.bool)
        assert batch.labels.choices is not None
        offered = offered.view(batch.labels.choices.shape[:2])  # [b k]
        label = class_of(batch, offered.shape[1], self.kind)
        if not offered.gather(1, label[:, None]).all():
            raise DataError("multiple_choice: the label of a text points to an answer that is empty or not there.")
        pairs = zip(texts(batch, words, self.kind), answers, strict=True)
        laid = lay_groups([self.layout.choices(context, each, words) for context, each in pairs], words)
        labels = replace(batch.labels, label=label, choices=None)
        return replace(laid, labels=labels, inputs=replace(laid.inputs_as(GroupedRows), offered=offered))

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return rows_count(batch, self._rows(batch), self.language)

    def loss(self, models: Mapping[str, Model], batch: Batch, rng: torch.Generator) -> Loss:
        rows, offered = self._rows(batch), offered_of(batch)
        scores, reading = score(models["model"], rows)
        term = class_term(_offered(scores, offered), label_of(batch))
        return rows_loss(term, models["model"], reading, rows, self.language)

    def predict(self, model: Model, batch: Batch) -> Tensor:
        return _offered(score(model, flat(batch))[0], offered_of(batch))

    def _rows(self, batch: Batch) -> Batch:
        """Every text with every answer; one that is not there says nothing."""
        rows = with_next_words(flat(batch))
        assert rows.weight is not None
        return replace(rows, weight=rows.weight * offered_of(batch).flatten()[:, None])


def _offered(scores: Tensor, offered: Tensor) -> Tensor:
    """Scores of all rows as [b k]; an answer that a text does not have gets -inf."""
    return scores.view(offered.shape).masked_fill(~offered, -torch.inf)


def offered_of(batch: Batch) -> Tensor:
    """[b k], true for the answers that exist."""
    offered = batch.inputs_as(GroupedRows).offered
    assert offered is not None
    return offered
