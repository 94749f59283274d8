"""The form of a source's records: single texts or pairs, labels, tags, choices; and a fair sample of their text."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from anyformer.data.record import Record
from anyformer.errors import DataError

MOST_CLASSES = 1 << 16


@dataclass(frozen=True)
class Contents:
    """The form that all records share."""

    pair: bool = False
    classes: tuple[str, ...] = ()
    """Labels in order of their ids; empty where there are none, or where they are measured numbers."""
    numbers: bool = False
    """Labels are numbers."""
    tags: tuple[str, ...] = ()
    """Word labels in order of their ids."""
    choices: int = 0
    """Largest number of answers of a record."""

    @property
    def form(self) -> str:
        """The form of a record in one word: tags, choices, pair, labelled_pair, classes, numbers or text."""
        if self.tags or self.choices:
            return "tags" if self.tags else "choices"
        if self.pair:
            return "labelled_pair" if self.classes else "pair"
        return "classes" if self.classes else "numbers" if self.numbers else "text"

    @property
    def plain(self) -> bool:
        """Whether records are single texts and nothing else, which can be cut anywhere."""
        return self.unlabelled and not self.pair

    @property
    def unlabelled(self) -> bool:
        """Whether records are texts or pairs of them and nothing else, which can share rows."""
        return not (self.classes or self.numbers or self.tags or self.choices)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Contents":
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        return cls(**values)


@dataclass
class ContentsCollector:
    """Collects the contents, record by record."""

    first: Record | None = None
    labels: dict[str, tuple[bool, str]] = field(default_factory=dict)
    """Label -> whether training has it, and where it was first seen."""
    tags: set[str] = field(default_factory=set)
    choices: int = 0
    numbers: bool = True
    integers: bool = True

    def see(self, record: Record, split: str) -> None:
        self.first = self.first or record
        if _form(record) != _form(self.first):
            raise _differ(record, self.first)
        self.tags.update(record.tags)
        self.choices = max(self.choices, len(record.choices))
        if record.choices:
            _check_choice(record)
        elif record.label is not None:
            self._see_label(record.label, record, split)

    def close(self) -> Contents:
        assert self.first is not None
        measured = self.numbers and not self.integers
        if not measured and len(self.labels) > MOST_CLASSES:
            raise DataError(f"more than {MOST_CLASSES} different labels, such as {next(iter(self.labels))!r}.")
        unseen = next(((label, where) for label, (known, where) in self.labels.items() if not known), None)
        if unseen and not self.numbers:
            raise DataError(
                f"{unseen[1]}: label {unseen[0]!r} never occurs in training. Move a few of its records there."
            )
        ordered = sorted(self.labels, key=float) if self.numbers else sorted(self.labels)
        return Contents(
            pair=self.first.target is not None,
            classes=() if measured else tuple(ordered),
            numbers=bool(self.labels) and self.numbers,
            tags=tuple(sorted(self.tags)),
            choices=self.choices,
        )

    def _see_label(self, label: str, record: Record, split: str) -> None:
        known, where = self.labels.get(label, (False, record.where))
        # a class that the hash happened to hold out whole is bad luck, not a mistake in the data
        known = known or split == "train" or record.split is None
        if label not in self.labels:
            value = _number(label)
            self.numbers = self.numbers and value is not None
            self.integers = self.integers and value is not None and value.is_integer()
        if label in self.labels or len(self.labels) <= MOST_CLASSES:
            self.labels[label] = known, where


def _form(record: Record) -> tuple[bool, bool, bool, bool]:
    return record.target is not None, record.label is not None, bool(record.tags), bool(record.choices)


def _differ(record: Record, first: Record) -> DataError:
    forms = zip(("target", "label", "tags", "choices"), _form(record), _form(first), strict=True)
    name, here = next((name, here) for name, here, there in forms if here != there)
    have, lack = (record, first) if here else (first, record)
    return DataError(f"{lack.where}: no {name}, but {have.where} has one. All records must be of one form.")


def _check_choice(record: Record) -> None:
    label = record.label or ""
    if not label.isdecimal() or int(label) >= len(record.choices):
        raise DataError(f"{record.where}: label {label!r} should be the index of one of {len(record.choices)} choices.")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


class TextSample:
    """Texts of a stream up to a number of bytes, from its beginning to its end.

    The n-th text gets the mark n * golden ratio mod 1, which spreads evenly, and stays while that is below a limit; the
    limit is halved whenever too much has been collected.
    """

    def __init__(self, most_bytes: int):
        self._most, self._bytes, self._seen, self._limit = most_bytes, 0, 0, 1 << 64
        self._texts: list[tuple[int, int, str]] = []

    def see(self, text: str) -> None:
        mark = self._seen * 0x9E3779B97F4A7C15 % (1 << 64)
        self._seen += 1
        if mark >= self._limit:
            return
        text = text[: self._most]
        size = len(text.encode("utf-8", "surrogatepass"))
        self._texts.append((mark, size, text))
        self._bytes += size
        while self._bytes > self._most and len(self._texts) > 1:
            self._limit //= 2
            self._texts = [item for item in self._texts if item[0] < self._limit] or self._texts[:1]
            self._bytes = sum(size for _, size, _ in self._texts)

    def __iter__(self) -> Iterator[str]:
        return (text for _, _, text in self._texts)
