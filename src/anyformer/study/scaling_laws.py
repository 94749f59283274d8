"""Scaling laws fitted to the points of a ladder: by weights, tokens, FLOPs, and weights and tokens together."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

from anyformer.statistics.intervals import Interval, difference_text
from anyformer.statistics.laws import Chinchilla, Kaplan, PowerLaw, spent_flops, training_flops
from anyformer.statistics.scaling import CHINCHILLA, KAPLAN, POWER, POWER_WITH_FLOOR, LawFit, NotEnough, fit


@dataclass(frozen=True)
class LadderPoint:
    """A run of a ladder: one size with one training length and one seed."""

    name: str
    """The rung: all seeds of a size and a training length have the same name."""
    weights: int
    tokens: int
    flops: int
    """FLOPs of the whole training."""
    loss: float
    """Loss on the whole test split with the best checkpoint, or on the validation split with the last one."""
    seconds: float
    devices: int = 1
    arm: str = ""
    """The architecture."""
    seed: int = 0

    @property
    def estimate(self) -> float:
        """The estimate 6 N D of the training FLOPs."""
        return training_flops(self.weights, self.tokens)

    @property
    def rate(self) -> float:
        """FLOP/s that each device sustained."""
        return self.flops / (self.seconds * self.devices) if self.seconds > 0 else float("nan")

    def spent(self, rate: float) -> float:
        """FLOPs that devices of this rate could have done in the time."""
        return spent_flops(self.seconds, self.devices, rate)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "rate": self.rate, "six_n_d": self.estimate}


@dataclass(frozen=True)
class Optimum:
    """The compute-optimal number of weights and tokens for a number of FLOPs."""

    flops: float
    weights: float
    tokens: float
    loss: float


@dataclass(frozen=True)
class Laws:
    """The fitted laws; `NotEnough` with the reason for a law that cannot be fitted."""

    longest: int
    """Number of tokens of the longest runs."""
    size: LawFit[PowerLaw] | NotEnough
    """L(N) of the longest runs, in the form of Kaplan et al."""
    size_with_floor: LawFit[PowerLaw] | NotEnough
    data: LawFit[PowerLaw] | NotEnough
    """L(D), the loss by tokens, of the largest size that was trained for several lengths."""
    compute: LawFit[PowerLaw] | NotEnough
    """L(C), the loss by FLOPs, of the rungs that no cheaper one is better than."""
    kaplan: LawFit[Kaplan] | NotEnough
    chinchilla: LawFit[Chinchilla] | NotEnough

    def best(self, tokens: float) -> "LawFit[Any] | NotEnough":
        """The law to predict with. At the tokens of the longest runs, laws of the size alone come first."""
        of_size: list[LawFit[Any] | NotEnough] = [self.size_with_floor, self.size]
        of_both: list[LawFit[Any] | NotEnough] = [self.chinchilla, self.kaplan]
        ranked = of_size + of_both if tokens == self.longest else of_both + of_size
        return next((law for law in ranked if isinstance(law, LawFit)), self.size)

    def predict(self, weights: float, tokens: float) -> tuple[str, Interval] | None:
        """The name of the best law, and the predicted loss of a new run with its interval."""
        law = self.best(tokens)
        if isinstance(law, NotEnough):
            return None
        inputs = (weights, tokens) if law.form.inputs == 2 else (weights,)
        return law.form.name, law.predict(*inputs)

    def optimum(self, flops: float) -> Optimum | None:
        """The weights and tokens with the lowest loss for a number of FLOPs."""
        if isinstance(self.chinchilla, NotEnough):
            return None
        law = self.chinchilla.law
        weights, tokens = law.optimum(flops)
        return Optimum(flops, weights, tokens, float(law.loss(weights, tokens)))

    def to_dict(self) -> dict[str, Any]:
        return {name: _facts(law) for name, law in self.named().items()}

    def named(self) -> "Mapping[str, LawFit[Any] | NotEnough]":
        return {
            "size": self.size,
            "size with a floor": self.size_with_floor,
            "data": self.data,
            "compute": self.compute,
            "kaplan": self.kaplan,
            "chinchilla": self.chinchilla,
        }


def laws(points: Sequence[LadderPoint]) -> Laws:
    """Fits all laws; those of the size alone use only the longest runs."""
    longest = max((point.tokens for point in points), default=0)
    by_size = [point for point in points if point.tokens == longest]
    by_data, best = data_points(points), frontier(points)
    both = [[point.weights for point in points], [point.tokens for point in points]]
    every = [point.loss for point in points]
    sizes, losses = [point.weights for point in by_size], [point.loss for point in by_size]
    return Laws(
        longest=longest,
        size=fit(POWER, sizes, losses),
        size_with_floor=fit(POWER_WITH_FLOOR, sizes, losses),
        data=fit(POWER, [point.tokens for point in by_data], [point.loss for point in by_data]),
        compute=fit(POWER, [point.flops for point in best], [point.loss for point in best]),
        kaplan=fit(KAPLAN, both, every),
        chinchilla=fit(CHINCHILLA, both, every),
    )


def data_points(points: Sequence[LadderPoint]) -> list[LadderPoint]:
    """The runs of the largest size that was trained for the most lengths."""
    lengths: dict[int, set[int]] = {}
    for point in points:
        lengths.setdefault(point.weights, set()).add(point.tokens)
    size = max(lengths, key=lambda weights: (len(lengths[weights]), weights), default=0)
    return [point for point in points if point.weights == size]


def frontier(points: Sequence[LadderPoint]) -> list[LadderPoint]:
    """The runs of the rungs whose mean loss is lower than that of every cheaper rung."""
    rungs: dict[str, list[LadderPoint]] = {}
    for point in points:
        rungs.setdefault(point.name, []).append(point)
    best, kept = math.inf, list[LadderPoint]()
    for runs in sorted(rungs.values(), key=lambda runs: runs[0].flops):
        mean = math.fsum(run.loss for run in runs) / len(runs)
        if mean < best:
            best = mean
            kept += runs
    return kept


@dataclass(frozen=True)
class ExponentDifference:
    """How an exponent of one architecture differs from that of another."""

    arm: str
    law: str
    exponent: str
    difference: Interval
    """Its exponent less that of the first architecture, with its 95% interval."""

    @property
    def settled(self) -> bool:
        """True if the interval excludes 0."""
        low, high = self.difference.low, self.difference.high
        return low is not None and high is not None and low * high > 0

    @property
    def text(self) -> str:
        """The law, the exponent and the difference."""
        name = self.law if self.exponent == "exponent" else f"{self.law}, {self.exponent.removesuffix('_exponent')}"
        return f"{name} {difference_text(self.difference)}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def exponent_differences(arm: str, laws: Laws, first: Laws) -> list[ExponentDifference]:
    """The differences of all exponents that both architectures have; the errors of the two fits are independent."""
    differences = []
    for name, law in laws.named().items():
        other = first.named()[name]
        if isinstance(law, NotEnough) or isinstance(other, NotEnough):
            continue
        for exponent in _exponents(law):
            ours, theirs = (each.band(attrgetter(exponent)) for each in (law, other))
            value, half = ours.value - theirs.value, math.hypot(_half(ours), _half(theirs))
            differences.append(ExponentDifference(arm, name, exponent, Interval(value, value - half, value + half)))
    return differences


def _half(interval: Interval) -> float:
    assert interval.low is not None and interval.high is not None
    return (interval.high - interval.low) / 2


def _exponents(law: LawFit[Any]) -> list[str]:
    return [name for name in asdict(law.law) if "exponent" in name]


def _facts(law: "LawFit[Any] | NotEnough") -> dict[str, Any]:
    if isinstance(law, NotEnough):
        return {"lacking": law.reason}
    values = asdict(law.law)
    exponents = {name: law.band(attrgetter(name)) for name in _exponents(law)}
    return {
        "values": values,
        "exponents": {name: asdict(interval) for name, interval in exponents.items()},
        "explained": law.explained,
    }
