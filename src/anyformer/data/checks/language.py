"""A half of a pair in the language of the other side: untranslated, or the two swapped.

Words vote. How much more often a word occurs on one side than on the other is learned from the data, without the words
of the pair itself. Nothing is reported unless the two sides are of different languages.

score(half) = sum over its words w of log p(w | source) - log p(w | target)
"""

import math
import re
from collections import Counter
from dataclasses import dataclass

from anyformer.core import Chance, Count, Positive
from anyformer.core.readable_numbers import part
from anyformer.data.checks.check import Check, Examination, Facts, Places

_WORD = re.compile(r"[^\W\d_]+")
LONGEST = 2_000  # characters that are read of a half


@dataclass(frozen=True, kw_only=True)
class Language(Check, kind="language"):
    """Pairs with a half in the language of the other side."""

    sampled = True
    clear: Positive = 5.0
    """Log-odds above which the language of a half is clear: e^5 to 1."""
    apart: Chance = 0.9
    """Share of the clear halves that must speak their own side's language, or the sides are not of two languages."""
    shared: Chance = 0.25
    """Sides that have more of their running words in common are of one language: a text and its summary."""
    pairs: Count = 20
    """Smallest number of pairs from which languages are learned."""

    def examine(self, facts: Facts) -> Examination:
        pairs: list[tuple[str, Counter[str], Counter[str]]] = []
        words = Counter[str](), Counter[str]()  # of all sources, and of all targets
        while item := (yield):
            record = item.record
            if record.target and record.text != record.target:
                pairs.append((record.where, _words(record.text), _words(record.target)))
                words[0].update(pairs[-1][1])
                words[1].update(pairs[-1][2])
        if len(pairs) < self.pairs or _in_common(*words) > self.shared:
            return []
        sizes, agreeing, strays, swapped = (words[0].total(), words[1].total()), 0, Places(), Places()
        for where, text, target in pairs:
            odds = _log_odds(words, sizes, text, target)
            votes = sum(odds[word] for word in text), -sum(odds[word] for word in target)
            agreeing += sum(vote > self.clear for vote in votes)
            wrong = [vote < -self.clear for vote in votes]
            if all(wrong):
                swapped.add(where)
            elif any(wrong):
                strays.add(where)
        others = strays.count + 2 * swapped.count
        if not others or agreeing < self.apart * (agreeing + others) or agreeing < len(pairs) / 2:
            return []
        findings = (strays, "have a half in the other side's language."), (swapped, "have source and target swapped.")
        return [
            self.finding(f"{part(places.count, len(pairs), 'pairs')} {fault}", places.where)
            for places, fault in findings
            if places.count
        ]


def _in_common(source: Counter[str], target: Counter[str]) -> float:
    """0..1: sum over words of min(p(w | source), p(w | target))."""
    sizes = max(source.total(), 1), max(target.total(), 1)
    return sum(min(count / sizes[0], target[word] / sizes[1]) for word, count in source.items())


def _log_odds(
    words: tuple[Counter[str], Counter[str]], sizes: tuple[int, int], text: Counter[str], target: Counter[str]
) -> dict[str, float]:
    """log p(w | source) - log p(w | target) of each word of a pair, without the counts of that pair."""
    size = math.log((sizes[1] - target.total() + 1) / (sizes[0] - text.total() + 1))
    return {
        word: math.log((words[0][word] - text[word] + 0.5) / (words[1][word] - target[word] + 0.5)) + size
        for word in text.keys() | target.keys()
    }


def _words(text: str) -> Counter[str]:
    return Counter(_WORD.findall(text[:LONGEST].lower()))
