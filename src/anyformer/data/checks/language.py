"""A half of a pair in the language of the other side: untranslated, or the two swapped.

Words vote. How much more often a word stands on one side than on the other is learnt from the data themselves, each
pair's own words left out; nothing is said where the two sides are not of different languages.

score(half) = sum over its words w of log p(w | source) - log p(w | target)
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from anyformer.core import Chance, Count, Positive
from anyformer.data.checks.check import Check, Facts, Finding, Item, Places, Watch, part

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

    def start(self, facts: Facts) -> Watch:
        return _Watch(self)


class _Watch(Watch):
    def __init__(self, check: Language):
        self.check = check
        self.pairs: list[tuple[str, Counter[str], Counter[str]]] = []
        self.sides = Counter[str](), Counter[str]()

    def see(self, item: Item) -> None:
        record = item.record
        if not record.target or record.text == record.target:
            return
        halves = _words(record.text), _words(record.target)
        self.pairs.append((record.where, *halves))
        for side, words in zip(self.sides, halves, strict=True):
            side.update(words)

    def findings(self) -> Iterator[Finding]:
        totals = self.sides[0].total(), self.sides[1].total()
        if len(self.pairs) < self.check.pairs or self._in_common(totals) > self.check.shared:
            return
        agreeing, strays, swapped = 0, Places(), Places()
        for where, text, target in self.pairs:
            votes = self._score(text, text, target, totals), -self._score(target, text, target, totals)
            agreeing += sum(vote > self.check.clear for vote in votes)
            wrong = [vote < -self.check.clear for vote in votes]
            if all(wrong):
                swapped.add(where)
            elif any(wrong):
                strays.add(where)
        others = strays.count + 2 * swapped.count
        if not others or agreeing < self.check.apart * (agreeing + others) or agreeing < len(self.pairs) / 2:
            return
        findings = ((strays, "have a half in the other side's language."), (swapped, "have source and target swapped."))
        for places, text_ in findings:
            if places.count:
                yield Finding("language", f"{part(places.count, len(self.pairs), 'pairs')} {text_}", places.where)

    def _in_common(self, totals: tuple[int, int]) -> float:
        """0..1: sum over words of min(p(w | source), p(w | target))."""
        source, target = self.sides
        sizes = max(totals[0], 1), max(totals[1], 1)
        return sum(min(count / sizes[0], target[word] / sizes[1]) for word, count in source.items())

    def _score(self, half: Counter[str], text: Counter[str], target: Counter[str], totals: tuple[int, int]) -> float:
        source_size, target_size = totals[0] - text.total() + 1, totals[1] - target.total() + 1
        odds = math.log(target_size / source_size)
        return sum(
            math.log((self.sides[0][word] - text[word] + 0.5) / (self.sides[1][word] - target[word] + 0.5)) + odds
            for word in half
        )


def _words(text: str) -> Counter[str]:
    return Counter(_WORD.findall(text[:LONGEST].lower()))
