"""Extreme lengths: texts that the context truncates, and single records far longer than all others."""

from dataclasses import dataclass

import numpy as np

from anyformer.core import Chance, Positive
from anyformer.core.readable_numbers import part
from anyformer.data.checks.check import Check, Examination, Facts, Places


@dataclass(frozen=True, kw_only=True)
class Lengths(Check, kind="lengths"):
    """Records that lose their end to the context, or are far longer than nearly all others."""

    sampled = True
    cut: Chance = 0.01
    """Share of truncated records that is not reported."""
    times: Positive = 20.0
    """A record is extreme if it is longer than this many times the 95th percentile."""

    def examine(self, facts: Facts) -> Examination:
        sizes, findings, long = list[tuple[int, str]](), [], Places()
        while item := (yield):
            size, where = max(len(item.tokens), len(item.target)), item.record.where
            sizes.append((size, where))
            if facts.longest is not None and size > facts.longest:
                long.add(where)
        if not sizes:
            return []
        if long.count > self.cut * len(sizes):
            text = f"{part(long.count, len(sizes))} are longer than {facts.longest} tokens and lose their end"
            hint = f"context={facts.context} has no room for more. Raise it, or shorten them."
            findings.append(self.finding(f"{text}: {hint}", long.where))
        usual = float(np.quantile([size for size, _ in sizes], 0.95))
        extreme = [pair for pair in sizes if pair[0] > self.times * max(usual, 1)]
        if extreme:
            extreme.sort(key=lambda pair: -pair[0])
            text = f"{part(len(extreme), len(sizes))} are far longer than the others: up to"
            text += f" {extreme[0][0]:,} tokens, where 95% have at most {usual:,.0f}."
            findings.append(self.finding(text, [where for _, where in extreme]))
        return findings
