"""No validation split: a model that learns its text by heart would go unnoticed."""

from collections.abc import Iterator
from dataclasses import dataclass

from anyformer.data.checks.check import Check, Facts, Finding, Item, Watch


@dataclass(frozen=True, kw_only=True)
class HeldOut(Check, kind="held_out"):
    """No record in the validation split."""

    def start(self, facts: Facts) -> Watch:
        return _Watch()


class _Watch(Watch):
    def __init__(self) -> None:
        self.train = self.valid = 0

    def see(self, item: Item) -> None:
        self.train += item.split == "train"
        self.valid += item.split == "valid"

    def findings(self) -> Iterator[Finding]:
        if self.train and not self.valid:
            text = f"none of the {self.train:,} records is held out for validation, so over-fitting stays unseen"
            yield Finding("held_out", f"{text}. Raise data.valid, or give more.")
