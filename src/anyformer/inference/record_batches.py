"""Batches of records, laid out as in training; each row holds one text."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anyformer.core import Frame
from anyformer.data.batching.batch import Batch, RowLabels
from anyformer.data.preparation.encoding import CUT, UNTAGGED, Encoded, RecordEncoder
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
    cut: int
    """Number of records whose end was cut off."""


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
            shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
            raise DataError(f"{record.where}: the {what} {wrong!r} was never seen in training. Known: {shown}.")
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
    rows, pad = [encoded for _, encoded in group], predictor.tokenizer.words.pad
    cut = {
        side: torch.tensor([bool(each.numbers[name][0]) for each in rows])
        for side, name in CUT.items()
        if name in rows[0].numbers
    }
    batch, source = _side(rows, "tokens", pad, packed=not predictor.alone), None
    if "source" in rows[0].sides:
        source = replace(_side(rows, "source", pad, packed=False), truncated=cut["source"])
    word_starts = None
    if predictor.word_starts is not None:
        starts = torch.from_numpy(predictor.word_starts.of(batch.tokens.numpy()))
        starts[:, 0] = True
        word_starts = starts & (batch.tokens != pad)
    batch = replace(
        batch, source=source, labels=_labels(rows, pad), truncated=cut.get("tokens"), word_starts=word_starts
    )
    shortened = int(torch.stack(list(cut.values())).any(0).sum()) if cut else 0
    return RecordBatch([number for number, _ in group], batch, shortened)


def _side(encoded: list[Encoded], side: str, pad: int, packed: bool) -> Batch:
    rows = [each.sides[side].tokens for each in encoded]
    tokens = _padded(rows, pad)
    there = _padded([np.ones(len(row), dtype=np.int64) for row in rows], 0).bool()
    if not packed:
        return Batch(tokens=tokens, frame=Frame(valid=there))
    places = torch.arange(tokens.shape[1]).expand_as(tokens).where(there, torch.zeros_like(tokens))
    segments = torch.zeros_like(tokens).where(there, torch.full_like(tokens, -1))
    return Batch(tokens=tokens, frame=Frame(valid=there, segments=segments, positions=places))


def _labels(rows: list[Encoded], pad: int) -> RowLabels:
    labels: dict[str, Tensor] = {
        name: torch.from_numpy(np.concatenate([each.numbers[name] for each in rows]))
        for name in ("label", "number")
        if name in rows[0].numbers
    }
    if "tags" in rows[0].numbers:
        labels["tags"] = _padded([each.numbers["tags"] for each in rows], UNTAGGED)
    if "choices" in rows[0].sides:
        sides = [each.sides["choices"] for each in rows]
        answers = [answer for side in sides for answer in np.split(side.tokens, np.cumsum(side.lengths)[:-1])]
        labels["choices"] = _padded(answers, pad).unflatten(0, (len(rows), -1))
    return RowLabels(**labels)


def _padded(rows: Sequence[NDArray[Any]], rest: int) -> Tensor:
    grid = np.full((len(rows), max(1, max(map(len, rows)))), rest, dtype=np.int64)
    for place, row in enumerate(rows):
        grid[place, : len(row)] = row
    return torch.from_numpy(grid)
