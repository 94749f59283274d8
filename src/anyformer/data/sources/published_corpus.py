"""The corpora of large pre-trained models: their published sizes, a local copy of one, or generated text in its place.

data.source = { kind = "published_corpus", name = "wikipedia", path = "wiki/" }   a copy: text, JSON lines, Parquet
data.source = { kind = "published_corpus", name = "wikipedia" }                   no copy: documents of a small grammar
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

from anyformer.core import Count
from anyformer.data.record import Record, SourceSpec
from anyformer.data.sources.named_source import guess
from anyformer.data.sources.toy_parses import ToyParses

SENTENCES = 8
"""Sentences of a generated document."""


@dataclass(frozen=True)
class PublishedSize:
    """The size of a corpus as its paper, or that of a model trained on it, states it."""

    paper: str
    words: int | None = None
    documents: int | None = None
    """Number of documents, in `unit`."""
    unit: str = "documents"
    gigabytes: int | None = None
    """Size of the text, not compressed."""

    def __str__(self) -> str:
        amounts = (
            self.words and f"{self.words / 1e6:,.0f}M words",
            self.documents and f"{self.documents:,} {self.unit}",
            self.gigabytes and f"{self.gigabytes:,} GB",
        )
        return f"{', '.join(amount for amount in amounts if amount)} ({self.paper})"


CORPORA: Mapping[str, PublishedSize] = {
    "bookscorpus": PublishedSize("arXiv 1810.04805 and GPT", words=800_000_000, documents=7_000, unit="books"),
    "wikipedia": PublishedSize("English, arXiv 1810.04805", words=2_500_000_000),
    "webtext": PublishedSize("GPT-2", documents=8_000_000, unit="web pages", gigabytes=40),
    "c4": PublishedSize("English, arXiv 1910.10683", gigabytes=750),
    "commoncrawl": PublishedSize("filtered for GPT-3, arXiv 2005.14165", gigabytes=570),
}


@dataclass(frozen=True, kw_only=True)
class PublishedCorpus(SourceSpec, kind="published_corpus"):
    """A corpus of large models, from a local copy; without one, generated text in its place."""

    plain = True

    name: Literal["bookscorpus", "wikipedia", "webtext", "c4", "commoncrawl"] = "wikipedia"
    """Which corpus; `anyformer data` states its published size."""
    path: str | None = None
    """The copy: a text file, JSON lines, Parquet, or a folder of them. Default: generated documents."""
    text: str | None = None
    """The field of the document, if the copy has fields and it cannot be guessed."""
    count: Count = 1_000
    """Number of generated documents, if there is no copy."""

    @classmethod
    def examples(cls) -> "tuple[PublishedCorpus, ...]":
        return (cls(count=20), cls(name="c4", path="c4.jsonl.gz"))

    @property
    def published(self) -> PublishedSize:
        """The published size of the corpus."""
        return CORPORA[self.name]

    def records(self) -> Iterator[Record]:
        if self.path is None:
            yield from self._generated()
            return
        for record in self._copy(self.path).records():
            yield replace(record, target=None, label=None, tags=(), choices=())

    def _copy(self, path: str) -> SourceSpec:
        return guess(path, {} if self.text is None else {"text": self.text})

    def _grammar(self) -> ToyParses:
        seed = int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:4])
        return ToyParses(count=SENTENCES * self.count, seed=seed)

    def _generated(self) -> Iterator[Record]:
        sentences = (f"{record.text}." for record in self._grammar().records())
        for number in range(1, self.count + 1):
            yield Record(" ".join(islice(sentences, SENTENCES)), where=f"generated document {number}")

    def fingerprint(self) -> str:
        inner = self._grammar() if self.path is None else self._copy(self.path)
        return hashlib.sha256(f"{self.kind} {self.name} {inner.fingerprint()}".encode()).hexdigest()

    def files(self) -> Mapping[str, Path]:
        return {} if self.path is None else self._copy(self.path).files()

    def warnings(self) -> list[str]:
        if self.path is not None:
            return self._copy(self.path).warnings()
        return [
            f"data.source.path is not set: these are {self.count:,} generated documents in place of {self.name}, "
            f"which has {self.published}. Set it to a copy of the corpus."
        ]
