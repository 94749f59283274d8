"""Batches of records, laid out as in training; each row holds one text."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np

from anyformer.core.readable_numbers import listed
from anyformer.data.batching.batch import Batch
from anyformer.data.batching.packings.packing import Collator, batch_of
from anyformer.data.batching.row_plan import NumberArray, RowPlan, Side, Split
from anyformer.data.preparation.encoding import Encoded, EncodedTexts, RecordEncoder
from anyformer.data.record import Record
from anyformer.errors import DataError
from anyformer.objectives.objective import Predictor

WINDOW, TOKENS = 1024, 8192
"""Records that are sorted by length together; tokens of a batch at most, padding included."""


class RecordBatch(NamedTuple):
    """Some records as a batch."""

    rows: list[int]
    """Index of the record of each row; a long document may have several rows."""
    batch: Batch


def record_batches(
    predictor: Predictor,
    records: Iterable[Record],
    *,
    labelled: bool = True,
    tokens: int = TOKENS,
    most_rows: int = 256,
) -> Iterator[RecordBatch]:
    """Batches of records of similar lengths. Records without text are left out; labels that training never saw are
    refused. `labelled=False`: the records have no labels, and stand-ins are used."""
    records, first = iter(records), 0
    while window := list(islice(records, WINDOW)):
        encoded = [
            (first + place, each) for place, record in enumerate(window) for each in _rows(predictor, record, labelled)
        ]
        first += len(window)
        lengths = [int(sum(side.lengths.sum() for side in each.sides.values())) for _, each in encoded]
        order, start = sorted(range(len(encoded)), key=lengths.__getitem__), 0
        for stop in range(1, len(order) + 1):
            longest = lengths[order[stop]] if stop < len(order) else tokens + 1
            if (stop + 1 - start) * longest > tokens or stop - start == most_rows:
                yield _batch(predictor, [encoded[place] for place in order[start:stop]])
                start = stop


def _rows(predictor: Predictor, record: Record, labelled: bool) -> list[Encoded]:
    record = checked(predictor, record) if labelled else _unlabelled(predictor, record)
    encoder = RecordEncoder(predictor.tokenizer, predictor.contents, predictor.context, shared=not predictor.alone)
    encoded = encoder.encode([record])
    lengths = encoded.sides["tokens"].lengths
    if encoder.truncates or len(lengths) == 1:
        return [encoded] if len(lengths) else []
    pieces = np.split(encoded.sides["tokens"].tokens, np.cumsum(lengths)[:-1])
    sides = [encoded.sides["tokens"]._replace(tokens=piece, lengths=np.array([len(piece)])) for piece in pieces]
    return [encoded._replace(sides={"tokens": side}) for side in sides]


def checked(predictor: Predictor, record: Record) -> Record:
    """The record, if it has the fields that the model was trained on, and classes of its training data."""
    contents = predictor.contents
    needs = {
        "target": (contents.pair, record.target),
        "tags": (contents.tags, record.tags or None),
        "label": (contents.classes or contents.numbers, record.label),
        "choices": (contents.choices, record.choices or None),
        "messages": (contents.chat, record.pieces or None),
    }
    for slot, (needed, value) in needs.items():
        if needed and value is None:
            raise DataError(
                f"{record.where}: has no {slot}, which {predictor.name} learned from. "
                f"Say which field: source.{slot}=NAME"
            )
    if contents.choices:
        return record
    for what, names, labels in (("label", contents.classes, (record.label,)), ("tag", contents.tags, record.tags)):
        wrong = next((label for label in labels if names and label not in names), None)
        if wrong is not None:
            known = listed(names, 12)
            raise DataError(f"{record.where}: the {what} {wrong!r} was never seen in training. Known: {known}.")
    return record


def _unlabelled(predictor: Predictor, record: Record) -> Record:
    """The record with what the model reads, and stand-ins for the labels of training."""
    contents = predictor.contents
    label = contents.classes[0] if contents.classes else "0" if contents.choices or contents.numbers else None
    tags = (contents.tags[0],) * len(record.text.split(" ")) if contents.tags else ()
    where = record.where or repr(record.text[:40])
    if contents.pair and record.target is None:
        advice = "Name the field of the second: source.target=NAME" if record.where else "Put a tab between them."
        raise DataError(f"{where}: {predictor.name} reads two texts. {advice}")
    if contents.choices and not record.choices:
        raise DataError(f"{where}: {predictor.name} chooses from answers. Put them behind tabs.")
    target, choices = record.target if contents.pair else None, record.choices if contents.choices else ()
    return replace(record, target=target, choices=choices, label=label, tags=tags)


def _batch(predictor: Predictor, group: list[tuple[int, Encoded]]) -> RecordBatch:
    rows = [encoded for _, encoded in group]
    sides = {name: _side([each.sides[name] for each in rows]) for name in rows[0].sides}
    numbers = {name: NumberArray(np.concatenate([each.numbers[name] for each in rows])) for name in rows[0].numbers}
    plan = RowPlan.one_each(np.arange(len(rows)))
    # a row that has several texts in training has segments and positions, also with one
    width = None if predictor.alone else int(sides["tokens"].lengths(plan.samples).max())
    collator = Collator(Split(sides, numbers), predictor.tokenizer.words.pad, width, predictor.word_starts)
    return RecordBatch([number for number, _ in group], batch_of(collator.arrays(plan)))


def _side(texts: list[EncodedTexts]) -> Side:
    ends = np.cumsum(np.concatenate([[0], *(text.lengths for text in texts)]))
    return Side(NumberArray(np.concatenate([text.tokens for text in texts])), NumberArray(ends))
