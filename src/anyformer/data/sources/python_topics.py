"""Python's own handbook: the topics behind `help("...")`, on every machine that has Python.

About eighty documents of technical English, half a million characters. Some are chapters that repeat whole sections
(`compound` holds `if`, `for`, `try`, ...), so a topic belongs to the group of the largest one that holds half of it.
"""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, ClassVar

from anyformer.data.record import Record, SourceSpec
from anyformer.errors import DataError

PARAGRAPH = 60
"""Characters from which on a paragraph is no chance repetition."""


@dataclass(frozen=True, kw_only=True)
class PythonTopics(SourceSpec, kind="python_topics"):
    """The topics of Python's built-in help, about 80 documents of technical English; needs no download."""

    usual_tokenizer: ClassVar[Mapping[str, Any]] = {"kind": "bpe", "size": 2048}  # half a megabyte has no more words

    def records(self) -> Iterator[Record]:
        topics = _topics()
        paragraphs = {
            name: frozenset(" ".join(part.split()) for part in text.split("\n\n") if len(part) >= PARAGRAPH)
            for name, text in topics.items()
        }
        for name, text in topics.items():
            yield Record(text=text, group=_home(name, paragraphs), where=f"Python's help topic {name!r}")

    def fingerprint(self) -> str:
        return self.hash_with(_topics())


def _topics() -> dict[str, str]:
    try:
        topics: Mapping[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError:
        message = "this Python came without its help topics (pydoc_data). Use a full installation, or a text of yours."
        raise DataError(message) from None
    names = {topics[name].strip(): name for name in sorted(topics, reverse=True)}  # a text under two names: once
    return {name: text for text, name in sorted(names.items(), key=itemgetter(1))}


def _home(name: str, paragraphs: Mapping[str, frozenset[str]]) -> str:
    shared = paragraphs[name]
    if not shared:
        return name
    larger = [other for other, theirs in paragraphs.items() if len(theirs) > len(shared) <= 2 * len(theirs & shared)]
    return _home(max(larger, key=lambda other: len(paragraphs[other])), paragraphs) if larger else name
