"""The identity, y = x, for models that are only an embedding and a head."""

from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Frame, Out, Part, PartSpec, Site


@dataclass(frozen=True, kw_only=True)
class Identity(PartSpec, kind="identity"):
    """Returns its input; with the join `replace` the layer does nothing."""

    def build(self, site: Site) -> "IdentityPart":
        return IdentityPart()


class IdentityPart(Part):
    def forward(self, x: Tensor, frame: Frame, state: tuple[()] | None = None) -> Out:
        return Out(x, state)
