"""Layers with graded learning rates, or frozen ones.

rate of a layer = lr x d^k,  k: its distance from the head (head 0, last layer 1, ..., embeddings last)
(discriminative fine-tuning, arXiv 1801.06146, section 3.2: d = 1 / 2.6). A list gives the factors themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from torch import nn

from anyformer.core import Model, ModelSpec, Range
from anyformer.errors import Problem, SpecError
from anyformer.optim.tunings.tuning_spec import TuningSpec, distances_from_head

Factor = Annotated[float, Range(low=0.0, high=1.0)]


@dataclass(frozen=True, kw_only=True)
class LayerRates(TuningSpec, kind="layers"):
    """Lower layers learn at lower rates, or not at all."""

    rates: Factor | tuple[Factor, ...] = 0.8
    """A number d: each layer learns at d times the rate of the layer above it, the head at the full rate, embeddings as
    the lowest layer. A list: the factors of the head, the last layer, the layer before it, ...; its last number holds
    for everything below. 0 freezes: [1, 1, 0] trains the head and the last layer alone, 0 the head alone."""

    @classmethod
    def examples(cls) -> "tuple[LayerRates, ...]":
        return cls(), cls(rates=(1.0, 0.5, 0.0))

    def check(self) -> None:
        if self.rates == ():
            raise SpecError(
                problems=[Problem("rates", "an empty list. Give a number, or the factor of the head first.")]
            )

    def factors(self, spec: ModelSpec, model: Model) -> Mapping[nn.Parameter, float]:
        return {parameter: self._factor(distance) for parameter, distance in distances_from_head(model).items()}

    def _factor(self, distance: int) -> float:
        if isinstance(self.rates, tuple):
            return self.rates[min(distance, len(self.rates) - 1)]
        return self.rates**distance
