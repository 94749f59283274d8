"""Scaling laws fitted to the points of a ladder: by weights, by FLOPs, and by weights and tokens together."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

from anyformer.statistics.intervals import Interval
from anyformer.statistics.laws import Chinchilla, Kaplan, PowerLaw, spent_flops, training_flops
from anyformer.statistics.scaling import CHINCHILLA, KAPLAN, POWER, POWER_WITH_FLOOR, LawFit, NotEnough, fit


@dataclass(frozen=True)
class LadderPoint:
    """A run of a ladder: one size with one training length."""

    name: str
    weights: int
    tokens: int
    flops: int
    """FLOPs of the whole training."""
    loss: float
    """Loss on the whole test split with the best checkpoint, or on the validation split with the last one."""
    seconds: float
    devices: int = 1

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
    compute: LawFit[PowerLaw] | NotEnough
    """L(C), the loss by FLOPs."""
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
            "compute": self.compute,
            "kaplan": self.kaplan,
            "chinchilla": self.chinchilla,
        }


def laws(points: Sequence[LadderPoint]) -> Laws:
    """Fits all laws; those of the size alone use only the longest runs."""
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
