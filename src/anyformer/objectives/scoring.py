"""Shared by objectives that read a text and score it, as in GPT's fine-tuning.

P(y | x) = softmax(W_y h_last),  L2 = sum log P(y | x),  L3 = L2 + lambda L1 with L1 the words of the same text
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import HeadSpec, Model, ModelSpec, Range
from anyformer.data.batching.batch import Batch
from anyformer.errors import DataError, SpecError
from anyformer.models.single import Single
from anyformer.objectives.objective import Loss, Term
from anyformer.objectives.words import (
    WORDS,
    HiddenStates,
    default_pool,
    parts_count,
    parts_term,
    read,
    require_single_text,
    words_count,
    words_head,
    words_term,
)
from anyformer.parts.heads.classifier import Classifier
from anyformer.parts.heads.several import Several

Share = Annotated[float, Range(low=0.0)]
SCORE = "label"
"""Name of the head with the scores, and of its term."""


def with_classifier(model: ModelSpec, classes: int, language: float, who: str) -> ModelSpec:
    """The model with a head that scores classes and, if `language` is above 0, one over words beside it."""
    single = require_single_text(model, who)
    head = _classifier(single, classes)
    if not language:
        return replace(single, head=head)
    if not single.causal:
        raise SpecError(
            f"{who}: language={language:g}: an {single.kind} sees the words it should say. Use a decoder, or set "
            f"objective.language = 0."
        )
    return replace(single, head=Several(heads={SCORE: head, WORDS: words_head(single)}, main=SCORE))


def _classifier(model: Single, classes: int) -> HeadSpec:
    head = model.head.named(SCORE)
    if not head.pools or head.outcomes is None:
        return head.classifier(classes, model.dim) or Classifier(classes=classes, pool=default_pool(model))
    if head.outcomes != classes:
        raise SpecError(f"the model's head has {head.outcomes} classes, the objective {classes}. Make them equal.")
    return head


def label_of(batch: Batch) -> Tensor:
    """The label of each row of a prepared batch."""
    assert batch.labels.label is not None
    return batch.labels.label


def class_of(batch: Batch, classes: int, who: str) -> Tensor:
    """The class id of each row [b], checked."""
    label = batch.labels.label
    if label is None:
        raise DataError(
            f"{who} needs a label for each text, and these data have none. Set data.source.label to a column or field."
        )
    if label.is_floating_point() or ((label < 0) | (label >= classes)).any():
        raise DataError(f"{who}: labels must be whole numbers from 0 to {classes - 1}, got {label.unique().tolist()}.")
    return label


def number_of(batch: Batch, who: str) -> Tensor:
    """The number of each row [b], checked."""
    measured, label = batch.labels.number, batch.labels.label
    number = label if measured is None else measured
    if number is None or (measured is None and not number.is_floating_point()):
        what = "have no labels" if number is None else "have classes"
        raise DataError(
            f"{who} needs a number for each text, and these data {what}. Set data.source.label to a column or field of "
            f'numbers, or use objective.kind = "classify".'
        )
    return number.float()


def with_next_words(batch: Batch) -> Batch:
    """The batch with the next token as target of each position."""
    weight = batch.valid.roll(-1, dims=1).float()
    weight[:, -1] = 0.0
    return replace(batch, targets=batch.tokens.roll(-1, dims=1), weight=weight)


def score(model: Model, batch: Batch) -> tuple[Tensor, HiddenStates]:
    """A score for each class of each row [b c], and the hidden states that it came from."""
    reading = read(model, batch)
    scores = model.output_head().named(SCORE)(reading.h, reading.frame)
    return scores.to(torch.promote_types(scores.dtype, torch.float32)), reading


def class_term(scores: Tensor, label: Tensor) -> Term:
    """Cross-entropy of scores [b c] with the class of each row."""
    return Term(F.cross_entropy(scores, label, reduction="sum"), count(label))


def number_term(scores: Tensor, label: Tensor) -> Term:
    """Squared error of scores [b 1] against the number of each row."""
    return Term(F.mse_loss(scores[:, 0], label.to(scores), reduction="sum"), count(label))


def beside(model: Model, reading: HiddenStates, batch: Batch, language: float) -> Loss:
    """The term of the words of the text, weighted by `language`; empty if that is 0."""
    if not language:
        return {}
    return {name: Term(language * term.sum, term.weight) for name, term in words_term(model, reading, batch).items()}


def beside_count(batch: Batch, language: float) -> Mapping[str, Tensor]:
    """The count of the words of the text; empty if `language` is 0."""
    return words_count(batch) if language else {}


def rows_count(batch: Batch, rows: Batch, language: float) -> Mapping[str, Tensor]:
    """The counts of all terms: a label for each text, words and tokens of the rows that are read for it."""
    return {SCORE: count(label_of(batch)), **beside_count(rows, language), **parts_count(rows)}


def rows_loss(term: Term, model: Model, reading: HiddenStates, rows: Batch, language: float) -> Loss:
    """The term of the labels, with the terms of words and parts."""
    return {SCORE: term, **beside(model, reading, rows, language), **parts_term(rows, reading)}


def count(items: Tensor) -> Tensor:
    """The number of rows, as the weight of a term."""
    return torch.tensor(float(items.shape[0]), device=items.device)
