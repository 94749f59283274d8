"""Extreme lengths: what the context cuts off, and single records far longer than all others."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from anyformer.core import Chance, Positive
from anyformer.data.checks.check import NAMED, Check, Facts, Finding, Item, Places, Watch, part


@dataclass(frozen=True, kw_only=True)
class Lengths(Check, kind="lengths"):
    """Records that lose their end to the context, or are far longer than nearly all others."""

    sampled = True
    cut: Chance = 0.01
    """Share of truncated records that is not reported."""
    times: Positive = 20.0
    """A record is extreme if it is longer than this many times the 95th percentile."""

    def start(self, facts: Facts) -> Watch:
        return _Watch(self, facts)


class _Watch(Watch):
    def __init__(self, check: Lengths, facts: Facts):
        self.check, self.context, self.longest = check, facts.context, facts.longest
        self.long = Places()
        self.sizes: list[int] = []
        self.places: list[str] = []

    def see(self, item: Item) -> None:
        size = max(len(item.tokens), len(item.target))
        self.sizes.append(size)
        self.places.append(item.record.where)
        if self.longest is not None and size > self.longest:
            self.long.add(item.record.where)

    def findings(self) -> Iterator[Finding]:
        if not self.sizes:
            return
        if self.long.count > self.check.cut * len(self.sizes):
            text = f"{part(self.long.count, len(self.sizes))} are longer than {self.longest} tokens and lose their end"
            hint = f"context={self.context} has no room for more. Raise it, or shorten them."
            yield Finding("lengths", f"{text}: {hint}", self.long.where)
        usual = float(np.quantile(self.sizes, 0.95))
        extreme = [index for index, size in enumerate(self.sizes) if size > self.check.times * max(usual, 1)]
        if extreme:
            extreme.sort(key=lambda index: -self.sizes[index])
            text = f"{part(len(extreme), len(self.sizes))} are far longer than the others: up to"
            text += f" {self.sizes[extreme[0]]:,} tokens, where 95% have at most {usual:,.0f}."
            yield Finding("lengths", text, tuple(self.places[index] for index in extreme[:NAMED]))
