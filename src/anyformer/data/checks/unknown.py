"""Many unknown tokens: the model cannot read what a word or character tokenizer has not learned."""

from collections import Counter, defaultdict
from dataclasses import dataclass

from anyformer.core import Chance
from anyformer.core.readable_numbers import part
from anyformer.data.checks.check import Check, Examination, Facts, Places


@dataclass(frozen=True, kw_only=True)
class Unknown(Check, kind="unknown"):
    """Tokens that the tokenizer does not know."""

    sampled = True
    most: Chance = 0.01
    """Share of a split's tokens that may be unknown."""

    def examine(self, facts: Facts) -> Examination:
        totals, unknown, places = Counter[str](), Counter[str](), defaultdict[str, Places](Places)
        while item := (yield):
            count = item.tokens.count(facts.unknown) + item.target.count(facts.unknown)
            totals[item.split] += len(item.tokens) + len(item.target)
            unknown[item.split] += count
            if count:
                places[item.split].add(item.record.where)
        hint = "A larger tokenizer.size helps, and tokenizer.kind=bpe has no unknown tokens."
        return [
            self.finding(f"{part(unknown[split], total, 'tokens')} of {split} are unknown. {hint}", places[split].where)
            for split, total in totals.items()
            if unknown[split] > self.most * total
        ]
