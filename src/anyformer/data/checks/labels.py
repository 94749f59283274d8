"""Labels that say nothing: all the same, or nearly; or each one another."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from anyformer.core import Chance
from anyformer.data.checks.check import Check, Facts, Finding, Item, Places, Watch, part, quote

MOST = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Labels(Check, kind="labels"):
    """Labels that are constant, nearly constant, or different for every record."""

    most: Chance = 0.95
    """Share of the most frequent label above which a constant answer is hard to beat."""

    def start(self, facts: Facts) -> Watch:
        return _Watch(self.most, bool(facts.contents.choices), facts.contents.numbers)


class _Watch(Watch):
    def __init__(self, most: float, choices: bool, numbers: bool):
        self.most, self.choices, self.numbers = most, choices, numbers
        self.counts: Counter[str] = Counter()
        self.first: dict[str, Places] = {}

    def see(self, item: Item) -> None:
        record = item.record
        for label in record.tags or ((record.label,) if record.label is not None else ()):
            if label in self.counts or len(self.counts) < MOST:
                self.counts[label] += 1
                self.first.setdefault(label, Places()).add(record.where)

    def findings(self) -> Iterator[Finding]:
        total = self.counts.total()
        if total < 2:
            return
        label, count = self.counts.most_common(1)[0]
        if count == total:
            yield Finding("labels", f"every label is {quote(label)}: there is nothing to learn.")
        elif count > self.most * total:
            text = f"{part(count, total, 'labels')} are {quote(label)}: always saying so is hard to beat."
            rare = next(name for name in self.counts if name != label)
            yield Finding("labels", text, self.first[rare].where)
        elif len(self.counts) > total / 2 and total >= 20 and not (self.numbers or self.choices):
            text = f"{len(self.counts):,} different labels in {total:,} records: is this the column of the label?"
            yield Finding("labels", text, self.first[label].where)
