"""Which class: for a text, a pair of texts, one of several answers, or each word; with probabilities. Or a number."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyformer.core import Model
from anyformer.data.batching.batch import Batch
from anyformer.data.record import Record
from anyformer.inference.predictor import Predictor
from anyformer.inference.record_batches import RecordBatch, lots
from anyformer.objectives.classify import Classify
from anyformer.objectives.heads import head_of, read
from anyformer.objectives.multiple_choice import MultipleChoice, offered_of
from anyformer.objectives.objective import Objective
from anyformer.objectives.regress import Regress
from anyformer.objectives.scoring import score
from anyformer.objectives.sentence_pairs import SentencePairs
from anyformer.objectives.token_labels import TokenLabels
from anyformer.objectives.transformations import flat


@dataclass(frozen=True)
class Label:
    """What was said of a text."""

    text: str
    label: str | None = None
    """The likeliest class; None where it is a number, or one class for each word."""
    probabilities: dict[str, float] = field(default_factory=dict)
    """Of every class, the likeliest first."""
    number: float | None = None
    words: tuple["Label", ...] = ()
    """Of each word, where those have classes."""
    cut: bool = False
    """True: its end was not read, it is longer than what the model learned from."""

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"text": self.text}
        if self.number is not None:
            return {**found, "number": self.number}
        if self.words:
            words = [{"text": it.text, "label": it.label, "probability": _first(it.probabilities)} for it in self.words]
            return {**found, "words": words}
        return {**found, "label": self.label, "probabilities": self.probabilities}


class Predictions(NamedTuple):
    """What a model said of some records."""

    lot: RecordBatch
    scores: Tensor
    """[b c] of each class; [b 1] a number; [b t c] of the tags of each token."""


def classify(trained: Predictor, records: Sequence[Record], top: int | None = None) -> list[Label]:
    """The class of each text, in order, with the probabilities of the `top` likeliest, or of all."""
    trained = trained.asked_to("classify")
    found: dict[int, Label] = {}
    for said in scores_of(trained, records, labelled=False):
        cut = said.lot.batch.truncated
        for place, number in enumerate(said.lot.rows):
            lost = cut is not None and bool(cut[place])
            found[number] = _label(trained, records[number], said, place, top, lost)
    return [found.get(number, Label(record.text)) for number, record in enumerate(records)]


def parse(text: str, trained: Predictor) -> Record:
    """A line as a record: a tab stands between the two texts of a pair, and before each answer."""
    first, *rest = text.split("\t") if trained.contents.pair or trained.contents.choices else [text]
    if trained.contents.choices:
        return Record(first, choices=tuple(rest))
    return Record(first, target=rest[0] if rest else None)


@torch.no_grad()
def scores_of(trained: Predictor, records: Iterable[Record], labelled: bool) -> Iterator[Predictions]:
    """What the model says of records, in the order of their lengths."""
    rng = torch.Generator().manual_seed(0)  # the interface asks for one; none of these objectives draws
    trained.model.eval()
    for lot in lots(trained, records, labelled=labelled):
        prepared = trained.objective.prepare(lot.batch, trained.tokenizer.words, rng).to(trained.device)
        yield Predictions(lot, _scores(trained.objective, trained.model, prepared).float().cpu())


@singledispatch
def _scores(objective: Objective, model: Model, batch: Batch) -> Tensor:
    raise NotImplementedError(objective.kind)


@_scores.register
def _(objective: Classify, model: Model, batch: Batch) -> Tensor:
    return score(model, batch)[0]


@_scores.register
def _(objective: Regress, model: Model, batch: Batch) -> Tensor:
    return score(model, batch)[0]


@_scores.register
def _(objective: SentencePairs, model: Model, batch: Batch) -> Tensor:
    both: Tensor = score(model, flat(batch))[0].unflatten(0, (len(batch.tokens), -1))  # [b orders c]
    return both.sum(1)


@_scores.register
def _(objective: MultipleChoice, model: Model, batch: Batch) -> Tensor:
    offered = offered_of(batch)
    scores: Tensor = score(model, flat(batch))[0].view(offered.shape)
    return scores.masked_fill(~offered, -torch.inf)


@_scores.register
def _(objective: TokenLabels, model: Model, batch: Batch) -> Tensor:
    reading = read(model, batch)
    scores: Tensor = head_of(model)(reading.h, reading.frame)
    return scores


def _label(trained: Predictor, record: Record, said: Predictions, place: int, top: int | None, cut: bool) -> Label:
    row = said.scores[place]
    if row.dim() == 2:
        assert said.lot.batch.labels.tags is not None
        tags = said.lot.batch.labels.tags[place]
        at = (tags >= 0).nonzero()[:, 0].tolist()
        words = record.text.split(" ")
        found = [
            _ranked(words[index], trained.contents.tags, row[spot], top) for index, spot in _spoken(words, at, trained)
        ]
        return Label(record.text, words=tuple(found), cut=cut)
    if len(row) == 1 and not trained.contents.choices:
        return Label(record.text, number=float(row[0]), cut=cut)
    names = record.choices if trained.contents.choices else trained.contents.classes
    ranked = _ranked(record.text, names, row[: len(names)], top)
    return Label(record.text, ranked.label, ranked.probabilities, cut=cut)


def _spoken(words: Sequence[str], at: Sequence[int], trained: Predictor) -> Iterator[tuple[int, int]]:
    """Words that have a token, with the place of their first; those past the end of what was read have none."""
    ids = trained.tokenizer.encode_batch([word if place == 0 else f" {word}" for place, word in enumerate(words)])
    there = [place for place, row in enumerate(ids) if row]
    yield from zip(there, at, strict=False)


def _ranked(text: str, names: Sequence[str], scores: Tensor, top: int | None) -> Label:
    chances = scores.softmax(-1)
    order = chances.argsort(descending=True, stable=True).tolist()[:top]
    return Label(text, names[order[0]], {names[place]: float(chances[place]) for place in order})


def _first(probabilities: dict[str, float]) -> float:
    return next(iter(probabilities.values()))
