"""Classes with probabilities for a text, a pair of texts, several answers or each word; or a number for each text."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyformer.core.fields import describes_fields
from anyformer.data.preparation.encoding import encode_words
from anyformer.data.record import Record
from anyformer.inference.record_batches import RecordBatch, record_batches
from anyformer.objectives.objective import Predictor


@describes_fields
@dataclass(frozen=True)
class Label:
    """The class of a text, or the classes of its words, or its number."""

    text: str
    target: str | None = None
    """The second text of a pair."""
    label: str | None = None
    """The most likely class; None for a number, or if each word has a class."""
    probabilities: dict[str, float] = field(default_factory=dict)
    """The probability of every class, the most likely first."""
    number: float | None = None
    words: tuple["Label", ...] = ()
    """The class of each word, if words have classes."""
    cut: bool = False
    """True if the end was not read, because the text is longer than those of training."""

    def to_dict(self) -> dict[str, Any]:
        texts = {"text": self.text} if self.target is None else {"text": self.text, "target": self.target}
        if self.number is not None:
            return {**texts, "number": self.number}
        if self.words:
            likely = ((word, max(word.probabilities.values())) for word in self.words)
            words = [{"text": word.text, "label": word.label, "probability": chance} for word, chance in likely]
            return {"text": self.text, "words": words}
        return {**texts, "label": self.label, "probabilities": self.probabilities}


class Predictions(NamedTuple):
    """The scores of some records."""

    records: RecordBatch
    scores: Tensor
    """Of classes [b c], of the tags of each token [b t c], or a number [b 1]."""


def classify(predictor: Predictor, records: Sequence[Record], top: int | None = None) -> list[Label]:
    """The class of each text, in order, with the probabilities of the `top` most likely classes, or of all."""
    predictor = predictor.for_task("classify")
    labels: dict[int, Label] = {}
    for predictions in predict(predictor, records, labelled=False):
        for place, number in enumerate(predictions.records.rows):
            labels[number] = _label(predictor, records[number], predictions, place, top)
    return [labels.get(number, Label(record.text)) for number, record in enumerate(records)]


def parse(text: str, predictor: Predictor) -> Record:
    """A line as a record: a tab separates the two texts of a pair, and precedes each answer."""
    contents = predictor.contents
    first, *rest = text.split("\t") if contents.pair or contents.choices else [text]
    if contents.choices:
        return Record(first, choices=tuple(rest))
    return Record(first, target=rest[0] if rest else None)


@torch.no_grad()
def predict(predictor: Predictor, records: Iterable[Record], labelled: bool) -> Iterator[Predictions]:
    """The scores of records, in the order of their lengths."""
    rng = torch.Generator().manual_seed(0)  # `prepare` takes one; an objective that classifies draws nothing
    predictor.model.eval()
    for batch in record_batches(predictor, records, labelled=labelled):
        prepared = predictor.objective.prepare(batch.batch, predictor.tokenizer.words, rng).to(predictor.device)
        scores = predictor.objective.predict(predictor.model, prepared).float().cpu()
        yield Predictions(batch, scores / predictor.temperature if scores_classes(predictor) else scores)


def scores_classes(predictor: Predictor) -> bool:
    """True if the model gives one class to each text."""
    return "classes" in predictor.objective.metrics


def _label(predictor: Predictor, record: Record, predictions: Predictions, place: int, top: int | None) -> Label:
    scores, contents, batch = predictions.scores[place], predictor.contents, predictions.records.batch
    cut = batch.truncated is not None and bool(batch.truncated[place])
    if scores.dim() == 2:
        tags, words = batch.labels.tags, record.text.split(" ")
        assert tags is not None
        first_tokens = (tags[place] >= 0).nonzero()[:, 0].tolist()
        ids = encode_words(predictor.tokenizer, record.text)
        spelled = [word for word, row in zip(words, ids, strict=True) if row]
        pairs = zip(spelled, first_tokens, strict=False)  # words beyond a cut have no token
        labels = [_ranked(word, contents.tags, scores[token], top) for word, token in pairs]
        return Label(record.text, words=tuple(labels), cut=cut)
    if len(scores) == 1 and not contents.choices:
        return Label(record.text, record.target, number=float(scores[0]), cut=cut)
    names = record.choices if contents.choices else contents.classes
    ranked = _ranked(record.text, names, scores[: len(names)], top)
    return Label(record.text, record.target, ranked.label, ranked.probabilities, cut=cut)


def _ranked(text: str, names: Sequence[str], scores: Tensor, top: int | None) -> Label:
    chances = scores.softmax(-1)
    order = chances.argsort(descending=True, stable=True).tolist()[:top]
    return Label(text, label=names[order[0]], probabilities={names[place]: float(chances[place]) for place in order})
