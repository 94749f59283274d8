"""Held-out texts that are in the training split, too: the score then measures memorisation.

Compared without case, digits, spaces and punctuation. Word for word copies are not told: training leaves them out.
"""

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from anyformer.core import Count
from anyformer.data.checks.check import NAMED, Check, Facts, Finding, Item, Watch, part
from anyformer.data.preparation.contents import digest

_IGNORED = re.compile(r"[\W\d_]+")


@dataclass(frozen=True, kw_only=True)
class Overlap(Check, kind="overlap"):
    """Held-out records that differ from a training record only in case, digits, spaces and punctuation."""

    letters: Count = 20
    """Shortest text, in letters, that is compared: shorter ones are equal by chance."""
    records: Count = 4_000_000
    """Largest number of training records that are remembered."""
    held_out: Count = 200_000
    """Largest number of held-out records that are compared."""

    def start(self, facts: Facts) -> Watch:
        return _Watch(self)


class _Watch(Watch):
    def __init__(self, check: Overlap):
        self.check, self.train, self.texts = check, array("Q"), array("Q")
        self.held_out: list[tuple[int, int, str]] = []

    def see(self, item: Item) -> None:
        letters = _IGNORED.sub("", item.record.text).lower()
        if len(letters) < self.check.letters:
            return
        if item.split != "train" and len(self.held_out) < self.check.held_out:
            self.held_out.append((digest(letters), digest(item.record.text), item.record.where))
        elif item.split == "train" and len(self.train) < self.check.records:
            self.train.append(digest(letters))
            self.texts.append(digest(item.record.text))

    def findings(self) -> Iterator[Finding]:
        marks, copies = (np.array([item[side] for item in self.held_out], dtype=np.uint64) for side in (0, 1))
        others = ~np.isin(np.array(self.texts, dtype=np.uint64), copies)
        overlapping = np.flatnonzero(np.isin(marks, np.array(self.train, dtype=np.uint64)[others])).tolist()
        if overlapping:
            text = f"{part(len(overlapping), len(marks), 'held-out texts')} stand in training, too, but for case,"
            hint = " digits, spaces and punctuation. Take them out of one of the two."
            yield Finding("overlap", text + hint, tuple(self.held_out[index][2] for index in overlapping[:NAMED]))
