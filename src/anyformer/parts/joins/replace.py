"""No residual connection: x' = y. Layers in sequence, as in a stacked recurrent network."""

from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Join, JoinSpec, Site


@dataclass(frozen=True, kw_only=True)
class Replace(JoinSpec, kind="replace"):
    """No residual connection: the branch's output alone."""

    residual = False

    def build(self, site: Site) -> "ReplaceModule":
        return ReplaceModule()


class ReplaceModule(Join):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return y
