"""The residual connection: x' = x + y          (arXiv 1512.03385)"""

from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Join, JoinSpec, Site


@dataclass(frozen=True, kw_only=True)
class Add(JoinSpec, kind="add"):
    """The residual connection: x + y."""

    invertible = True

    def build(self, site: Site) -> "AddModule":
        return AddModule()


class AddModule(Join):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    def undo(self, joined: Tensor, y: Tensor) -> Tensor:
        return joined - y
