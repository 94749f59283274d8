"""A few words among labels that are numbers: they make classes of all the numbers."""

from collections import Counter
from dataclasses import dataclass

from anyformer.core import Chance, Count
from anyformer.core.readable_numbers import listed, part
from anyformer.data.checks.check import NAMED, Check, Examination, Facts, Places, leave_out, quote


@dataclass(frozen=True, kw_only=True)
class WordsAmongNumbers(Check, kind="words_among_numbers"):
    """Labels of which nearly all are numbers, so that the others may be missing values."""

    most: Chance = 0.1
    """Share of the labels up to which words among numbers are reported."""
    different: Count = 20
    """Least number of different numbers: a few may be meant as classes."""
    labels: Count = 1 << 16
    """Largest number of different labels that are remembered."""

    def examine(self, facts: Facts) -> Examination:
        numbers, words, places, total = set[str](), Counter[str](), Places(), 0
        while item := (yield):
            record = item.record
            if record.label is None or record.choices:
                continue
            total += 1
            if record.label in numbers or _is_number(record.label):
                if len(numbers) < self.labels:
                    numbers.add(record.label)
            else:
                places.add(record.where)
                if record.label in words or len(words) < self.labels:
                    words[record.label] += 1
        if not words or len(numbers) < self.different or places.count > self.most * total:
            return []
        named = [f"{quote(word)} ({count:,})" for word, count in words.most_common()]
        text = f"{part(places.count, total, 'labels')} are no numbers: {listed(named, NAMED)}"
        text = f"{text}. Because of them each of the {len(numbers):,} numbers is a class"
        hint = f"To predict a number, correct them, or leave them out: {leave_out(words)}"
        return [self.finding(f"{text}. {hint}", places.where)]


def _is_number(label: str) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True
