"""Labels such as "-" or "n/a", which stand for a missing label in many data sets and would be learned as a class."""

from collections import defaultdict
from dataclasses import dataclass

from anyformer.core.readable_numbers import counted
from anyformer.data.checks.check import Check, Examination, Facts, Places, leave_out, quote

MARKS = frozenset({"-", "--", "?", "n/a", "nan", "null", "<na>", "unlabeled", "unlabelled"})
"""Labels that mean that there is none, in small letters."""
NUMBERED = frozenset({"-1", "na"})
"""Marks among classes that are numbered from 0; with fewer than three others -1 may be a class, as in -1, 0, 1."""
FEWEST_NUMBERED = 3


@dataclass(frozen=True, kw_only=True)
class NoLabel(Check, kind="no_label"):
    """Labels that stand for a missing label, which would be a class of their own."""

    def examine(self, facts: Facts) -> Examination:
        marked, others = defaultdict[str, Places](Places), set[str]()
        while item := (yield):
            label = item.record.label
            if label is None or item.record.choices:
                continue
            if label.strip().lower() in MARKS | NUMBERED:
                marked[label].add(item.record.where)
            elif len(others) <= FEWEST_NUMBERED:
                others.add(label)
        if len(others) < FEWEST_NUMBERED or not all(label.isdecimal() for label in others):
            for label in [label for label in marked if label.strip().lower() in NUMBERED]:
                del marked[label]
        if facts.contents.numbers or not marked or not others:
            return []
        named = ", ".join(f"{quote(label)} ({places.count:,})" for label, places in marked.items())
        total = sum(places.count for places in marked.values())
        text = f"{counted(total, 'texts')} with a label that often means that there is none: {named}"
        where = (place for places in marked.values() for place in places.where)
        return [self.finding(f"{text}. It is learned as a class. If it is none: {leave_out(marked)}", where)]
