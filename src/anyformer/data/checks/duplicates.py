"""The same record again and again: counted as more data than there is, and learnt by heart."""

from collections.abc import Iterator
from dataclasses import dataclass

from anyformer.core import Chance, Count
from anyformer.data.checks.check import Check, Facts, Finding, Item, Places, Watch, part
from anyformer.data.preparation.contents import digest


@dataclass(frozen=True, kw_only=True)
class Duplicates(Check, kind="duplicates"):
    """Records that repeat an earlier one, word for word."""

    most: Chance = 0.01
    """Share of duplicates that is not reported."""
    records: Count = 1_000_000
    """Largest number of different records that are remembered."""

    def start(self, facts: Facts) -> Watch:
        return _Watch(self)


class _Watch(Watch):
    def __init__(self, check: Duplicates):
        self.check, self.seen, self.known, self.again = check, 0, set[int](), Places()

    def see(self, item: Item) -> None:
        record = item.record
        if not record.text.strip():
            return  # empty ones are told as such
        self.seen += 1
        mark = digest("\0".join([record.text, record.target or "", record.label or "", *record.choices]))
        if mark in self.known:
            self.again.add(record.where)
        elif len(self.known) < self.check.records:
            self.known.add(mark)

    def findings(self) -> Iterator[Finding]:
        if self.again.count > self.check.most * self.seen:
            text = f"{part(self.again.count, self.seen)} repeat an earlier one word for word."
            yield Finding("duplicates", text, self.again.where)
