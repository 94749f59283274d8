"""The base of every rule by which learning rates transfer from small models to large ones."""

from dataclasses import dataclass

from anyformer.core import Spec
from anyformer.optim.groups import LearnedTensor


@dataclass(frozen=True, kw_only=True)
class RateTransfer(Spec):
    """How the learning rate of a tensor follows from its shape and its role."""

    def factor(self, tensor: LearnedTensor, power: float) -> float:
        """The factor on the learning rate of a tensor.

        power: how fast the effect of an update grows with the fan-in of a matrix, which depends on the optimiser
        (`OptimizerSpec.fan_in_power`).
        """
        raise NotImplementedError
