"""Fixup's residual connection: a learned multiplier on the branch, which starts at 1.

x' = x + m y,  m learned and 1 at first          (arXiv 1901.09321, section 3)
The branch itself starts at 0, by the initialisation `fixup`.
"""

from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Join, JoinSpec, Site, param


@dataclass(frozen=True, kw_only=True)
class FixupJoin(JoinSpec, kind="fixup"):
    """The residual connection with a learned multiplier that starts at one: x + m y. For the init `fixup`."""

    def build(self, site: Site) -> "FixupJoinModule":
        return FixupJoinModule()


class FixupJoinModule(Join):
    def __init__(self) -> None:
        super().__init__()
        self.multiplier = param((1,), "gain")

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.multiplier * y
