"""Floods of unknown tokens: what a word or character tokenizer has not learnt, the model cannot read."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from anyformer.core import Chance
from anyformer.data.checks.check import Check, Facts, Finding, Item, Places, Watch, part
from anyformer.data.preparation.contents import SPLITS


@dataclass(frozen=True, kw_only=True)
class Unknown(Check, kind="unknown"):
    """Tokens that the tokenizer does not know."""

    sampled = True
    most: Chance = 0.01
    """Share of a split's tokens that may be unknown."""

    def start(self, facts: Facts) -> Watch:
        return _Watch(self.most, facts.unknown)


class _Watch(Watch):
    def __init__(self, most: float, unknown: int):
        self.most, self.id = most, unknown
        self.total, self.unknown = Counter[str](), Counter[str]()
        self.places = {split: Places() for split in SPLITS}

    def see(self, item: Item) -> None:
        count = item.tokens.count(self.id) + item.target.count(self.id)
        self.total[item.split] += len(item.tokens) + len(item.target)
        self.unknown[item.split] += count
        if count:
            self.places[item.split].add(item.record.where)

    def findings(self) -> Iterator[Finding]:
        for split, total in self.total.items():
            if self.unknown[split] > self.most * total:
                text = f"{part(self.unknown[split], total, 'tokens')} of {split} are unknown."
                hint = " A larger tokenizer.size helps, and tokenizer.kind=bpe knows everything."
                yield Finding("unknown", text + hint, self.places[split].where)
