"""Held-out texts that are in the training split, too: the score then measures memorisation.

Compared without case, digits, spaces and punctuation. Exact copies are not reported: training leaves them out.
"""

import re
from array import array
from dataclasses import dataclass

import numpy as np

from anyformer.core import Count
from anyformer.data.checks.check import Check, Examination, Facts, part
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

    def examine(self, facts: Facts) -> Examination:
        train, texts = array("Q"), array("Q")
        held_out: list[tuple[int, int, str]] = []
        while item := (yield):
            letters = _IGNORED.sub("", item.record.text).lower()
            if len(letters) < self.letters:
                continue
            if item.split != "train" and len(held_out) < self.held_out:
                held_out.append((digest(letters), digest(item.record.text), item.record.where))
            elif item.split == "train" and len(train) < self.records:
                train.append(digest(letters))
                texts.append(digest(item.record.text))
        marks, copies = (np.array([entry[side] for entry in held_out], dtype=np.uint64) for side in (0, 1))
        others = ~np.isin(np.array(texts, dtype=np.uint64), copies)
        overlapping = np.flatnonzero(np.isin(marks, np.array(train, dtype=np.uint64)[others])).tolist()
        if not overlapping:
            return []
        text = f"{part(len(overlapping), len(marks), 'held-out texts')} stand in training, too, but for case,"
        hint = " digits, spaces and punctuation. Take them out of one of the two."
        return [self.finding(text + hint, [held_out[index][2] for index in overlapping])]
