"""Maximal update parametrisation: the best learning rate of a small model is that of a wider or deeper one.

hidden matrices  rate x (width / fan_in)^p x sqrt(branches / n)     n: residual branches of the stack
  of role `out`  another sqrt(branches / n)                         they feed the residual stream
head             rate x width / fan_in
all others       rate
p is 1 for updates of a fixed size for each weight (Adam, Lion): their effect is a sum over fan_in inputs that all point
the same way. Use it with weights of `init.kind = "mup"`, and with an untied head or a tied one with scale = "mup".
(arXiv 2203.03466, table 3; arXiv 2310.02244, with the factor of a residual branch moved into its last matrix.)
"""

from dataclasses import dataclass
from math import sqrt

from anyformer.core import Count
from anyformer.optim.optimizer import LearnedTensor, RateTransfer


@dataclass(frozen=True, kw_only=True)
class MuPRates(RateTransfer, kind="mup"):
    """Rates that transfer over widths and depths: lower for matrices with more inputs and for deeper stacks."""

    width: Count = 256
    """Number of inputs at which a hidden matrix has the learning rate itself."""
    branches: Count = 12
    """Number of residual branches of a stack at which its matrices have the learning rate itself."""

    def factor(self, tensor: LearnedTensor, power: float) -> float:
        if tensor.role == "head":
            return self.width / tensor.fan_in
        if not tensor.treatment.matrix:
            return 1.0
        by_depth = sqrt(self.branches / tensor.residuals)
        by_role = by_depth if "out" in tensor.roles else 1.0
        return float((self.width / tensor.fan_in) ** power) * by_depth * by_role
