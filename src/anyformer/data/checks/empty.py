"""Empty texts and empty halves of pairs: a model learns nothing from them, or to answer with nothing."""

from dataclasses import dataclass

from anyformer.core.readable_numbers import part
from anyformer.data.checks.check import Check, Examination, Facts, Places


@dataclass(frozen=True, kw_only=True)
class Empty(Check, kind="empty"):
    """Texts, or halves of pairs, that are empty."""

    def examine(self, facts: Facts) -> Examination:
        seen, texts, targets = 0, Places(), Places()
        while item := (yield):
            seen += 1
            if not item.record.text.strip():
                texts.add(item.record.where)
            if item.record.target is not None and not item.record.target.strip():
                targets.add(item.record.where)
        return [
            self.finding(f"{part(places.count, seen)} have an empty {what}.", places.where)
            for places, what in ((texts, "text"), (targets, "target"))
            if places.count
        ]
