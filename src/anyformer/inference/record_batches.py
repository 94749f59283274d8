"""Records as batches, laid out as in training; each row holds one text."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anyformer.core import Frame
from anyformer.data.batching.batch import Batch, RowLabels
from anyformer.data.preparation.encoding import CUT, UNTAGGED, Encoded, RecordEncoder
from anyformer.data.record import Record
from anyformer.errors import DataError
from anyformer.inference.predictor import Predictor

Integers: TypeAlias = NDArray[np.int64]


class Pass(NamedTuple):
    """Size and fixed cost of one pass through a model."""

    tokens: int
    """Most tokens of one pass, padding included."""
    start: int
    """Fixed cost of a pass, in tokens."""


ON_CPU = Pass(tokens=2048, start=32)
"""More tokens leave the cache; below 256 the weights are read for too little work (benchmarks/embeddings.py)."""


ELSEWHERE = Pass(tokens=32768, start=4096)
"""Small passes would leave a GPU waiting for the host. No other sizes were measured there."""


def grouped(lengths: Sequence[int] | Integers, price: Pass) -> Iterator[list[int]]:
    """The indices of the texts of each batch, the shortest first."""
    order = np.argsort(np.asarray(lengths), kind="stable")
    values, first = np.unique(np.asarray(lengths)[order], return_index=True)
    first = np.append(first, len(order))
    for start, stop in _stretches(values, first, price):
        places = order[first[start] : first[stop]].tolist()
        rows = max(1, price.tokens // int(values[stop - 1]))
        yield from (places[at : at + rows] for at in range(0, len(places), rows))


def _stretches(values: Integers, first: Integers, price: Pass) -> list[tuple[int, int]]:
    """The cheapest stretches of lengths, as ranges of indices into `values`."""
    best, cut = np.zeros(len(values) + 1), np.zeros(len(values) + 1, dtype=np.int64)
    for stop in range(1, len(values) + 1):
        tokens = (first[stop] - first[:stop]) * values[stop - 1]
        costs = best[:stop] + tokens + price.start * np.ceil(tokens / price.tokens)
        cut[stop] = costs.argmin()
        best[stop] = costs[cut[stop]]
    stretches, stop = [], len(values)
    while stop:
        stretches.append((int(cut[stop]), stop))
        stop = int(cut[stop])
    return stretches[::-1]


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
        encoded.sort(key=lambda pair: _length(pair[1]))
        for group in _groups(encoded, tokens, most_rows):
            yield _batch(predictor, group)


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
    """The record, if it has the fields that the model was trained on, and classes that it knows."""
    contents = predictor.contents
    needs = {"target": (contents.pair, record.target), "tags": (bool(contents.tags), record.tags or None)}
    needs |= {
        "label": (bool(contents.classes or contents.numbers), record.label),
        "choices": (bool(contents.choices), record.choices or None),
    }
    for slot, (needed, value) in needs.items():
        if needed and value is None:
            raise DataError(
                f"{record.where}: has no {slot}, which {predictor.name} learned from. "
                f"Say which field: source.{slot}=NAME"
            )
    known = {"label": contents.classes, "tag": contents.tags}
    for what, names in known.items():
        labels = record.tags if what == "tag" else (record.label,)
        if (
            names
            and not contents.choices
            and (wrong := next((each for each in labels if each not in names), None)) is not None
        ):
            shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
            raise DataError(f"{record.where}: the {what} {wrong!r} was never seen in training. Known: {shown}.")
    return record


def _unlabelled(predictor: Predictor, record: Record) -> Record:
    """The record with stand-ins for the labels of training."""
    contents = predictor.contents
    label = "0" if contents.choices or contents.numbers else contents.classes[0] if contents.classes else None
    tags = (contents.tags[0],) * len(record.text.split(" ")) if contents.tags else ()
    if contents.pair and record.target is None:
        raise DataError(
            f"{record.where or record.text[:40]!r}: {predictor.name} reads two texts. Put a tab between them."
        )
    if contents.choices and not record.choices:
        raise DataError(
            f"{record.where or record.text[:40]!r}: {predictor.name} chooses from answers. Put them behind tabs."
        )
    return replace(record, label=label, tags=tags)


def _length(encoded: Encoded) -> int:
    return int(sum(side.lengths.sum() for side in encoded.sides.values()))


def _groups(encoded: list[tuple[int, Encoded]], tokens: int, most_rows: int) -> Iterator[list[tuple[int, Encoded]]]:
    start = 0
    for stop in range(1, len(encoded) + 1):
        longest = _length(encoded[stop][1]) if stop < len(encoded) else tokens + 1
        if (stop + 1 - start) * longest > tokens or stop - start == most_rows:
            yield encoded[start:stop]
            start = stop


def _batch(predictor: Predictor, group: list[tuple[int, Encoded]]) -> RecordBatch:
    numbers, rows = [number for number, _ in group], [encoded for _, encoded in group]
    pad = predictor.tokenizer.words.pad
    batch = _side([each.sides["tokens"].tokens for each in rows], pad, packed=not predictor.alone)
    source = None
    if "source" in rows[0].sides:
        source = _side([each.sides["source"].tokens for each in rows], pad, packed=False)
    labels = _labels(rows, pad)
    cut = {
        side: torch.tensor([bool(each.numbers[name][0]) for each in rows])
        for side, name in CUT.items()
        if name in rows[0].numbers
    }
    if source is not None:
        source = replace(source, truncated=cut["source"])
    batch = replace(
        batch, source=source, labels=labels, truncated=cut.get("tokens"), word_starts=_word_starts(predictor, rows, pad)
    )
    return RecordBatch(numbers, batch, int(torch.stack(list(cut.values())).any(0).sum()) if cut else 0)


def _side(rows: Sequence[NDArray[Any]], pad: int, packed: bool) -> Batch:
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
        answers = [
            np.split(side.tokens, np.cumsum(side.lengths)[:-1]) for side in (each.sides["choices"] for each in rows)
        ]
        flat = _padded([answer for row in answers for answer in row], pad)
        labels["choices"] = flat.unflatten(0, (len(rows), -1))
    return RowLabels(**labels)


def _word_starts(predictor: Predictor, rows: list[Encoded], pad: int) -> Tensor | None:
    if predictor.word_starts is None:
        return None
    tokens = _padded([each.sides["tokens"].tokens for each in rows], pad).numpy()
    starts = predictor.word_starts.of(tokens)
    starts[:, 0] = True
    return torch.from_numpy(starts & (tokens != pad))


def _padded(rows: Sequence[NDArray[Any]], rest: int) -> Tensor:
    grid = np.full((len(rows), max(1, max(map(len, rows)))), rest, dtype=np.int64)
    for place, row in enumerate(rows):
        grid[place, : len(row)] = row
    return torch.from_numpy(grid)


class Ragged(NamedTuple):
    """The tokens of all texts, end to end."""

    tokens: Integers
    lengths: Integers
    starts: Integers

    @classmethod
    def of(cls, texts: Sequence[Sequence[int]]) -> "Ragged":
        lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        tokens = np.fromiter(chain.from_iterable(texts), dtype=np.int64, count=int(lengths.sum()))
        return cls(tokens, lengths, lengths.cumsum() - lengths)

    def padded(self, group: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor, Frame]:
        """Some texts as rows padded with zeros, their lengths, and a frame that marks the tokens."""
        lengths = self.lengths[group]
        places = np.arange(lengths.max())
        inside = places < lengths[:, None]
        tokens = np.where(inside, self.tokens[np.where(inside, self.starts[group][:, None] + places, 0)], 0)
        valid = None if inside.all() else _moved(inside, device)
        return _moved(tokens, device), _moved(lengths, device), Frame(valid=valid)


def _moved(values: Integers | np.ndarray[tuple[int, ...], np.dtype[np.bool_]], device: torch.device) -> Tensor:
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
