"""Made-up studies of which the truth is known: every arm has its own noise, and one may really differ."""

from collections.abc import Iterator

import numpy as np

from anyformer.statistics.paired import Floats, differences

PAIRED = np.sqrt(2.0)
"""The standard deviation of a difference of two arms with noise of 1 each."""


def studies(count: int, arms: int, seeds: int, *, effect: float = 0.0, seed: int = 0) -> Iterator[Floats]:
    """Differences [arms - 1, seeds] from the first arm; the first of them is off by `effect` paired deviations."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        values = generator.normal(3.0, 1.0, (arms, seeds)) + generator.normal(0.0, 2.0, seeds)  # a seed moves all arms
        values[1] += effect * PAIRED
        yield differences(values)[1:]
