"""The base of every check: it receives all records and reports at the end what is wrong with them, and where."""

import shlex
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from anyformer.core import Spec
from anyformer.core.plain_data import inline, parse_override
from anyformer.data.preparation.contents import Contents
from anyformer.data.record import Record

NAMED = 3
"""Lines that a warning names."""
LONGEST_QUOTE = 40


@dataclass(frozen=True)
class Facts:
    """Facts about the data that are known before the records are checked."""

    contents: Contents = field(default_factory=Contents)
    unknown: int = -1
    """Id of the unknown token."""
    context: int = 512
    """Longest sequence, in tokens."""
    longest: int | None = None
    """Longest text, in tokens, that is not truncated; None: longer texts go on in the next sequence."""


@dataclass(frozen=True)
class Item:
    """A record, its split and, for checks on a sample, the ids of its text and target."""

    record: Record
    split: str = "train"
    tokens: Sequence[int] = ()
    target: Sequence[int] = ()


@dataclass(frozen=True)
class Finding:
    """A warning: which check, what is wrong, and the first places."""

    check: str
    text: str
    where: tuple[str, ...] = ()


Examination: TypeAlias = Generator[None, Item | None, list[Finding]]
"""A check in progress: receives one item after the other, then None, and returns its findings."""


class Watch:
    """Runs an examination, so that many checks share one pass over the records."""

    def __init__(self, examination: Examination):
        self._examination = examination
        next(examination)

    def see(self, item: Item) -> None:
        """The next record."""
        self._examination.send(item)

    def findings(self) -> list[Finding]:
        """The findings, after the last record."""
        try:
            self._examination.send(None)
        except StopIteration as end:
            findings: list[Finding] = end.value
            return findings
        raise AssertionError("an examination ends when it receives None")


@dataclass(frozen=True, kw_only=True)
class Check(Spec):
    """Something that may be wrong with data."""

    sampled: ClassVar[bool] = False
    """Whether the check sees only a sample of the records, with their tokens; otherwise all records, without tokens."""

    def examine(self, facts: Facts) -> Examination:
        """A coroutine: `while item := (yield):` for each record, then `return [self.finding(...)]`."""
        raise NotImplementedError

    def start(self, facts: Facts) -> Watch:
        """A new examination, before the first record."""
        return Watch(self.examine(facts))

    def finding(self, text: str, where: Iterable[str] = ()) -> Finding:
        """A warning of this check, with the first places."""
        return Finding(self.kind, text, tuple(where)[:NAMED])


@dataclass
class Places:
    """Counts occurrences, and remembers the first places."""

    count: int = 0
    where: list[str] = field(default_factory=list)

    def add(self, where: str) -> None:
        self.count += 1
        if len(self.where) < NAMED:
            self.where.append(where)


def leave_out(labels: Iterable[str]) -> str:
    """The override that leaves out the rows of a table with one of these labels, as a shell word."""
    key, value = "data.source.unlabelled", ",".join(labels)
    return shlex.quote(f"{key}={value}" if parse_override(f"{key}={value}")[1] == value else f"{key}={inline(value)}")


def quote(text: str) -> str:
    """The beginning of a text, on one line."""
    return repr(text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 3] + "...")
