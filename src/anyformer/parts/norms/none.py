"""No normalisation: y = x."""

from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Frame, Norm, NormSpec, Site


@dataclass(frozen=True, kw_only=True)
class NoNorm(NormSpec, kind="none"):
    """No normalisation, explicitly: for a model that removes a norm of the preset it extends."""

    def build(self, site: Site) -> "NoNormModule":
        return NoNormModule()


class NoNormModule(Norm):
    def forward(self, x: Tensor, frame: Frame) -> Tensor:
        return x
