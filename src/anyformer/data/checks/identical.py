"""Source and target are the same: an untranslated line, or one file given twice."""

from collections.abc import Iterator
from dataclasses import dataclass

from anyformer.core import Chance
from anyformer.data.checks.check import Check, Facts, Finding, Item, Places, Watch, part


@dataclass(frozen=True, kw_only=True)
class Identical(Check, kind="identical"):
    """Pairs whose target repeats the source."""

    most: Chance = 0.01
    """Share of identical pairs that is not reported: names and numbers are not translated."""

    def start(self, facts: Facts) -> Watch:
        return _Watch(self.most)


class _Watch(Watch):
    def __init__(self, most: float):
        self.most, self.seen, self.same = most, 0, Places()

    def see(self, item: Item) -> None:
        record = item.record
        if record.target is None:
            return
        self.seen += 1
        if record.text.strip() and record.text.strip() == record.target.strip():
            self.same.add(record.where)

    def findings(self) -> Iterator[Finding]:
        if self.same.count <= self.most * self.seen:
            return
        text = f"{part(self.same.count, self.seen, 'pairs')} have a target that repeats the source."
        hint = " Right if copying is the task." if self.same.count == self.seen else " Are they untranslated?"
        yield Finding("identical", text + hint, self.same.where)
