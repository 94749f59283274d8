"""ReZero: a residual connection whose branch starts switched off, so that a fresh layer is the identity.

x' = x + a y,  a learned and 0 at first          (arXiv 2003.04887)
The first step teaches a alone; the branch learns once a has left 0.
"""

from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Join, JoinSpec, Site, param


@dataclass(frozen=True, kw_only=True)
class ReZero(JoinSpec, kind="rezero"):
    """The residual connection with a learned weight that starts at zero: x + a y."""

    invertible = True

    def build(self, site: Site) -> "ReZeroModule":
        return ReZeroModule()


class ReZeroModule(Join):
    def __init__(self) -> None:
        super().__init__()
        self.weight = param((1,), "scalar")  # one number with a dimension, since FSDP cannot shard a scalar

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.weight * y

    def undo(self, joined: Tensor, y: Tensor) -> Tensor:
        return joined - self.weight * y
