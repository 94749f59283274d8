"""Records without text, pairs without a half: they teach nothing, or that the answer is silence."""

from collections.abc import Iterator
from dataclasses import dataclass

from anyformer.data.checks.check import Check, Facts, Finding, Item, Places, Watch, part


@dataclass(frozen=True, kw_only=True)
class Empty(Check, kind="empty"):
    """Texts, or halves of pairs, that are empty."""

    def start(self, facts: Facts) -> Watch:
        return _Watch()


class _Watch(Watch):
    def __init__(self) -> None:
        self.seen = 0
        self.texts, self.targets = Places(), Places()

    def see(self, item: Item) -> None:
        self.seen += 1
        record = item.record
        if not record.text.strip():
            self.texts.add(record.where)
        if record.target is not None and not record.target.strip():
            self.targets.add(record.where)

    def findings(self) -> Iterator[Finding]:
        for places, what in ((self.texts, "text"), (self.targets, "target")):
            if places.count:
                yield Finding("empty", f"{part(places.count, self.seen)} have an empty {what}.", places.where)
