"""The scaling laws of a ladder's points: by weights, by operations, and by weights and tokens together."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

from anyformer.statistics.intervals import Interval
from anyformer.statistics.laws import Chinchilla, Kaplan, PowerLaw, spent_flops, training_flops
from anyformer.statistics.scaling import CHINCHILLA, KAPLAN, POWER, POWER_WITH_FLOOR, LawFit, NotEnough, fit


@dataclass(frozen=True)
class LadderPoint:
    """One size, trained for one time."""

    name: str
    weights: int
    tokens: int
    flops: int
    """Counted by the cost card."""
    loss: float
    """On text that it did not learn from."""
    seconds: float
    devices: int = 1

    @property
    def estimate(self) -> float:
        """6 N D."""
        return training_flops(self.weights, self.tokens)

    @property
    def rate(self) -> float:
        """FLOP/s that each device sustained."""
        return self.flops / (self.seconds * self.devices) if self.seconds > 0 else float("nan")

    def spent(self, rate: float) -> float:
        """Operations that devices of this rate could have made in the time."""
        return spent_flops(self.seconds, self.devices, rate)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "rate": self.rate, "six_n_d": self.estimate}


@dataclass(frozen=True)
class Optimum:
    """The best use of an amount of operations."""

    flops: float
    weights: float
    tokens: float
    loss: float


@dataclass(frozen=True)
class Laws:
    """Each fitted, or why it is not."""

    longest: int
    """Tokens of the longest trainings."""
    size: LawFit[PowerLaw] | NotEnough
    """L(N) of these, Kaplan's form."""
    size_with_floor: LawFit[PowerLaw] | NotEnough
    compute: LawFit[PowerLaw] | NotEnough
    """L(C)."""
    kaplan: LawFit[Kaplan] | NotEnough
    chinchilla: LawFit[Chinchilla] | NotEnough

    def best(self, tokens: float) -> "LawFit[Any] | NotEnough":
        """The one to predict with: for as many tokens as the longest trainings had nothing need be known of data."""
        of_size: list[LawFit[Any] | NotEnough] = [self.size_with_floor, self.size]
        of_both: list[LawFit[Any] | NotEnough] = [self.chinchilla, self.kaplan]
        ranked = of_size + of_both if tokens == self.longest else of_both + of_size
        return next((law for law in ranked if isinstance(law, LawFit)), self.size)

    def predict(self, weights: float, tokens: float) -> tuple[str, Interval] | None:
        """The law that says it, and the loss of a new run with its band."""
        law = self.best(tokens)
        if isinstance(law, NotEnough):
            return None
        inputs = (weights, tokens) if law.form.inputs == 2 else (weights,)
        return law.form.name, law.predict(*inputs)

    def optimum(self, flops: float) -> Optimum | None:
        """Weights and tokens of the lowest loss for so many operations."""
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
            "compute": self.compute,
            "kaplan": self.kaplan,
            "chinchilla": self.chinchilla,
        }


def laws(points: Sequence[LadderPoint]) -> Laws:
    """Of all that were trained; by size alone at the longest training only."""
    longest = max((point.tokens for point in points), default=0)
    longest_points = [point for point in points if point.tokens == longest]
    sizes, losses = [point.weights for point in longest_points], [point.loss for point in longest_points]
    both = [[point.weights for point in points], [point.tokens for point in points]]
    every = [point.loss for point in points]
    return Laws(
        longest=longest,
        size=fit(POWER, sizes, losses),
        size_with_floor=fit(POWER_WITH_FLOOR, sizes, losses),
        compute=fit(POWER, [point.flops for point in points], every),
        kaplan=fit(KAPLAN, both, every),
        chinchilla=fit(CHINCHILLA, both, every),
    )


def _facts(law: "LawFit[Any] | NotEnough") -> dict[str, Any]:
    if isinstance(law, NotEnough):
        return {"lacking": law.reason}
    values = asdict(law.law)
    exponents = {name: law.band(attrgetter(name)) for name in values if "exponent" in name}
    return {
        "values": values,
        "exponents": {name: asdict(interval) for name, interval in exponents.items()},
        "explained": law.explained,
    }
