"""Duplicate records: counted as more data than there is, and memorised."""

from dataclasses import dataclass

from anyformer.core import Chance, Count
from anyformer.core.readable_numbers import part
from anyformer.data.checks.check import Check, Examination, Facts, Places
from anyformer.data.preparation.contents import digest


@dataclass(frozen=True, kw_only=True)
class Duplicates(Check, kind="duplicates"):
    """Records that repeat an earlier one, word for word."""

    most: Chance = 0.01
    """Share of duplicates that is not reported."""
    records: Count = 1_000_000
    """Largest number of different records that are remembered."""

    def examine(self, facts: Facts) -> Examination:
        seen, known, again = 0, set[int](), Places()
        while item := (yield):
            record = item.record
            if record.repeated or not record.text.strip():
                continue  # intended; or reported by the check `empty`
            seen += 1
            mark = digest("\0".join([record.text, record.target or "", record.label or "", *record.choices]))
            if mark in known:
                again.add(record.where)
            elif len(known) < self.records:
                known.add(mark)
        if again.count <= self.most * seen:
            return []
        return [self.finding(f"{part(again.count, seen)} repeat an earlier one word for word.", again.where)]
