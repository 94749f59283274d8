"""Source and target are the same: an untranslated line, or one file given twice."""

from dataclasses import dataclass

from anyformer.core import Chance
from anyformer.core.readable_numbers import part
from anyformer.data.checks.check import Check, Examination, Facts, Places


@dataclass(frozen=True, kw_only=True)
class Identical(Check, kind="identical"):
    """Pairs whose target repeats the source."""

    most: Chance = 0.01
    """Share of identical pairs that is not reported: names and numbers are not translated."""

    def examine(self, facts: Facts) -> Examination:
        pairs, same = 0, Places()
        while item := (yield):
            record = item.record
            pairs += record.target is not None
            if record.target is not None and record.text.strip() == record.target.strip() != "":
                same.add(record.where)
        if same.count <= self.most * pairs:
            return []
        text = f"{part(same.count, pairs, 'pairs')} have a target that repeats the source."
        hint = " Right if copying is the task." if same.count == pairs else " Are they untranslated?"
        return [self.finding(text + hint, same.where)]
