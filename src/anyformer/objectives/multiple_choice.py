"""The right one of several answers: each is read with its context and scored, softmax over the scores.

P(k | context) = softmax_k(w . h(context <sep> answer_k))          (GPT, figure 1)
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from anyformer.data.batching.batch import Batch
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.errors import DataError
from anyformer.objectives.scoring import Share, TextScoring, class_of, with_next_words
from anyformer.objectives.transformations import GroupedRows, Layout, choice_texts, flat, lay_groups, texts


@dataclass(frozen=True, kw_only=True)
class MultipleChoice(TextScoring, kind="multiple_choice"):
    """The right one of several answers to a text."""

    metrics = ("classes",)
    default_for: ClassVar[Mapping[str, tuple[str, ...]]] = {"choices": ("decoder", "encoder", "encoder_decoder")}

    layout: Layout = Layout()
    """How a text and an answer become a row of tokens."""
    language: Share = 0.0
    """How much the words of the texts count beside the choice; 0.5 in GPT's fine-tuning, 0: not at all."""

    @classmethod
    def examples(cls) -> "tuple[MultipleChoice, ...]":
        return cls(), cls(language=0.5)

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

    def rows(self, batch: Batch) -> Batch:
        """Every text with every answer; the words of an answer that does not exist have no weight."""
        rows = with_next_words(flat(batch))
        assert rows.weight is not None
        return replace(rows, weight=rows.weight * offered_of(batch).flatten()[:, None])

    def combine(self, scores: Tensor, batch: Batch) -> Tensor:
        """[b k]: the scores of the answers of each text; -inf for an answer that does not exist."""
        offered = offered_of(batch)
        return scores.view(offered.shape).masked_fill(~offered, -torch.inf)


def offered_of(batch: Batch) -> Tensor:
    """[b k], true for the answers that exist."""
    offered = batch.inputs_as(GroupedRows).offered
    assert offered is not None
    return offered
