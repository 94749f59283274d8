"""Encodes records as arrays of ids, by several processes, in the order of the records.

`in_order` is a parallel map whose results keep the order of the items. Few items are in progress at any time, so memory
stays bounded. A process that dies stops the map at the next result; processes whose parent died end by themselves.
"""

import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import chain, compress, islice
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from anyformer.child_process import end_with
from anyformer.core.readable_numbers import counted
from anyformer.data.batching.row_plan import Integers
from anyformer.data.chat.template import encode_conversation
from anyformer.data.preparation.contents import Contents
from anyformer.data.record import Record
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.errors import DataError, WorkerError

T = TypeVar("T")
R = TypeVar("R")

_WORK: list[Callable[[Any], Any]] = []  # the function of a worker process, set once when it starts


def in_order(work: Callable[[T], R], items: Iterable[T], workers: int, ahead: int = 2) -> Iterator[R]:
    """work(item) for every item, in order; each of `workers` processes computes up to `ahead` items in advance."""
    waiting: deque[Future[R]] = deque()
    pool = ProcessPoolExecutor(workers, initializer=_start, initargs=(work, os.getpid()))
    try:
        for item in items:
            waiting.append(pool.submit(_do, item))
            if len(waiting) > ahead * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise WorkerError(
            f"one of the {workers} processes that read the data was killed, perhaps for lack of memory. "
            "Go on with fewer of them, or with none: workers=0."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _start(work: Callable[[Any], Any], parent: int) -> None:
    _WORK[:] = [work]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    end_with(parent)


def _do(item: Any) -> Any:
    return _WORK[0](item)


UNTAGGED = -1
"""The tag of a token that does not begin a word."""
ANSWER = 0
"""The tag of a token in an answer of an assistant."""
SPECIAL_TOKENS = 2
"""Positions that a text in a row of its own leaves free for the special tokens of an objective: <bos> <eos>, or
<cls> <sep>."""
CUT = {"tokens": "cut", "source": "source_cut"}
"""Side -> file that marks the samples that lost their end, after which no <eos> may be added."""
WARM_UP = 8
"""Chunks that are encoded before worker processes start: enough for little data."""
RecordChunk: TypeAlias = tuple[str, list[Record], list[bool]]
"""A split, records of it that are encoded together, and for each whether its text goes on in the next one."""


class EncodedTexts(NamedTuple):
    """Ids, end to end, and how many belong to each sample."""

    tokens: Integers
    lengths: Integers


class Encoded(NamedTuple):
    """Some records of a split as arrays."""

    sides: dict[str, EncodedTexts]
    numbers: dict[str, NDArray[Any]]
    documents: int
    empty: int
    """Records that are left out, since one of their sides has no token."""
    long: int
    """Records that are longer than the context."""
    lost: int
    """Tokens of long records that are left out, since a row of its own has no room for them."""
    goes_on: NDArray[np.bool_]
    """For each record, whether its text goes on in the next one."""

    def counts(self) -> dict[str, int]:
        """Number of tokens of each side, of samples and of documents, of records that were left out or are long, and of
        tokens that long ones lost."""
        counts = {side: len(texts.tokens) for side, texts in self.sides.items()}
        joined = int(self.goes_on.sum())
        counts |= {"samples": len(self.sides["tokens"].lengths) - joined, "documents": self.documents - joined}
        return counts | {"empty": self.empty, "long": self.long, "lost": self.lost}


@dataclass(frozen=True)
class RecordEncoder:
    """Encodes records; the same in every process."""

    tokenizer: Tokenizer
    contents: Contents
    context: int | None
    """Longest sample; None: documents of any length stay as they are."""
    shared: bool
    """Whether rows hold several samples, whose ends are marked here; otherwise the objective marks them."""

    @property
    def truncates(self) -> bool:
        """Whether a text that is too long loses its end; otherwise it becomes several samples, which share rows."""
        return not (self.shared and self.contents.plain)

    @property
    def longest(self) -> int:
        """Largest number of tokens of a sample."""
        context = sys.maxsize if self.context is None else self.context
        return context - SPECIAL_TOKENS if self.truncates else context

    def encode_chunk(self, chunk: RecordChunk) -> tuple[str, Encoded]:
        split, records, goes_on = chunk
        return split, self.encode(records, goes_on)

    def encode(self, records: list[Record], goes_on: list[bool] | None = None) -> Encoded:
        """The records as arrays; texts longer than the context are cut. `goes_on`: whether the text of each record goes
        on in the next one, so that both are one document; only where documents are stored in full length."""
        size = self.tokenizer.words.size
        columns = {"tokens": self._ids(records, "tokens")}
        if self.contents.pair:
            columns["source"] = self._ids(records, "source")
        joined = np.array(goes_on if goes_on and self.context is None else [False] * len(records), dtype=np.bool_)
        if joined.any():
            columns["tokens"] = [ids[:-1] if on else ids for ids, on in zip(columns["tokens"], joined, strict=True)]
        tags = self._tags(records) if self.contents.tags or self.contents.chat else None
        present = [all(sides) for sides in zip(*columns.values(), strict=True)]  # no side is empty
        if self.contents.chat and tags is not None:  # a conversation that ends before its first answer teaches nothing
            present = [ANSWER in row[: self.longest] for row in tags]
        records = list(compress(records, present))
        columns = {name: list(compress(column, present)) for name, column in columns.items()}
        over = {name: np.array([len(ids) > self.longest for ids in column]) for name, column in columns.items()}
        sides = {name: self._cut(name, column) for name, column in columns.items()}
        if self.contents.choices:
            sides["choices"] = self._choices(records)
        numbers = self._labels(records)
        if tags is not None:
            numbers["tags"] = _join([row[: self.longest] for row in compress(tags, present)]).tokens
        if not self.shared:
            numbers |= {CUT[name]: cut.astype(np.uint8) for name, cut in over.items()}
        for name, (tokens, _) in sides.items():
            if wrong := [token for token in (tokens.min(initial=0), tokens.max(initial=0)) if not 0 <= token < size]:
                raise DataError(f"{name}: the tokenizer gave id {wrong[0]}, outside its vocabulary of {size}.")
        long = int(np.logical_or.reduce(list(over.values())).sum())
        lengths = chain.from_iterable(map(len, column) for column in columns.values()) if self.truncates else ()
        lost = sum(max(0, length - self.longest) for length in lengths)
        return Encoded(sides, numbers, len(records), len(present) - len(records), long, lost, joined[present])

    def _ids(self, records: list[Record], side: str) -> list[list[int]]:
        if self.contents.chat:
            return [encode_conversation(self.tokenizer, record.pieces)[0] for record in records]
        target = self.contents.pair and side == "tokens"
        if self.contents.tags and not target:
            return [list(chain.from_iterable(encode_words(self.tokenizer, record.text))) for record in records]
        ids = self.tokenizer.encode_batch([str(record.target) if target else record.text for record in records])
        return ids if self.truncates else [self._ended(document, side) for document in ids]

    def _ended(self, ids: list[int], side: str) -> list[int]:
        """The ids with the end mark that an objective adds to a text in a row of its own."""
        words = self.tokenizer.words
        return [*ids, words.sep if side == "source" else words.eos] if ids else ids

    def _tags(self, records: list[Record]) -> list[list[int]]:
        if self.contents.chat:
            marks = (encode_conversation(self.tokenizer, record.pieces)[1] for record in records)
            return [[ANSWER if answer else UNTAGGED for answer in row] for row in marks]
        known = {tag: place for place, tag in enumerate(self.contents.tags)}
        tags = []
        for record in records:
            words = encode_words(self.tokenizer, record.text)
            if len(words) != len(record.tags):
                raise DataError(
                    f"{record.where}: {counted(len(words), 'words')} but {counted(len(record.tags), 'tags')}."
                )
            pairs = zip(words, record.tags, strict=True)
            tags.append([known[tag] if first == 0 else UNTAGGED for ids, tag in pairs for first in range(len(ids))])
        return tags

    def _cut(self, side: str, column: list[list[int]]) -> EncodedTexts:
        if self.truncates:
            # A target that lost its end gets no <eos>; a source always ends in <sep>.
            ends = [self.shared and (side == "source" or len(ids) <= self.longest) for ids in column]
            shortened = [ids[: self.longest] for ids in column]
            return _join([self._ended(ids, side) if end else ids for ids, end in zip(shortened, ends, strict=True)])
        tokens, lengths = _join(column)
        pieces = np.maximum(1, -(-lengths // self.longest))
        cut = np.full(int(pieces.sum()), self.longest)
        cut[np.cumsum(pieces) - 1] = lengths - (pieces - 1) * self.longest
        return EncodedTexts(tokens, cut)

    def _choices(self, records: list[Record]) -> EncodedTexts:
        missing: list[list[int]] = [[]] * self.contents.choices
        rows = ((*self.tokenizer.encode_batch(record.choices), *missing)[: len(missing)] for record in records)
        return _join([ids[: self.longest] for row in rows for ids in row])

    def _labels(self, records: list[Record]) -> dict[str, NDArray[Any]]:
        labels = [record.label or "" for record in records]
        if self.contents.choices:
            return {"label": np.array([int(label) for label in labels], dtype=np.int64)}
        numbers: dict[str, NDArray[Any]] = {}
        if self.contents.numbers:
            numbers["number"] = np.array([float(label) for label in labels], dtype=np.float32)
        if self.contents.classes:
            known = {label: place for place, label in enumerate(self.contents.classes)}
            numbers["label"] = np.array([known[label] for label in labels], dtype=np.int64)
        elif numbers:
            numbers["label"] = numbers["number"]
        return numbers


def encode_words(tokenizer: Tokenizer, text: str) -> list[list[int]]:
    """The ids of each word; all but the first with the space before it, as they stand in the text."""
    first, *others = text.split(" ")
    return tokenizer.encode_batch([first, *(f" {word}" for word in others)])


def _join(column: list[list[int]]) -> EncodedTexts:
    lengths = np.fromiter(map(len, column), dtype=np.int64, count=len(column))
    return EncodedTexts(np.fromiter(chain.from_iterable(column), dtype=np.int64, count=int(lengths.sum())), lengths)


def encode_all(encoder: RecordEncoder, chunks: Iterable[RecordChunk], workers: int) -> Iterator[tuple[str, Encoded]]:
    """Every chunk encoded, in order."""
    chunks = iter(chunks)
    yield from map(encoder.encode_chunk, chunks if workers < 2 else islice(chunks, WARM_UP))
    if workers >= 2:
        yield from in_order(encoder.encode_chunk, chunks, workers)
