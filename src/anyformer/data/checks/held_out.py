"""No validation split: over-fitting would go unnoticed."""

from collections import Counter
from dataclasses import dataclass

from anyformer.data.checks.check import Check, Examination, Facts


@dataclass(frozen=True, kw_only=True)
class HeldOut(Check, kind="held_out"):
    """No record in the validation split."""

    def examine(self, facts: Facts) -> Examination:
        splits = Counter[str]()
        while item := (yield):
            splits[item.split] += 1
        if not splits["train"] or splits["valid"]:
            return []
        text = f"none of the {splits['train']:,} records is held out for validation, so over-fitting stays unseen"
        return [self.finding(f"{text}. Raise data.valid, or give more.")]
