"""A learned vector for each layer, which tells layers with the same weights apart.

y = x + e_n          n: the number of the layer (Universal Transformer, arXiv 1807.03819, section 2.1)
As a branch of a shared block it is joined by `replace`, without a norm: the stream goes on with the vector.
"""

from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Amount, Count, Frame, Out, Part, PartSpec, Site, State, Table


@dataclass(frozen=True, kw_only=True)
class StepEmbedding(PartSpec, kind="step_embedding"):
    """Adds a learned vector for the number of the layer, so that a shared block can tell its steps apart."""

    needs_layer = True

    steps: Count
    """Number of layers that have a vector; later ones pass the stream unchanged."""
    first: Amount = 0
    """Number of the first layer that has a vector; earlier ones pass the stream unchanged."""

    def build(self, site: Site) -> "StepEmbeddingPart":
        return StepEmbeddingPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[StepEmbedding, ...]":
        return (cls(steps=2),)


class StepEmbeddingPart(Part):
    def __init__(self, spec: StepEmbedding, site: Site):
        super().__init__()
        self.first = spec.first
        self.table = Table(spec.steps, site.dim, role="position")

    def forward(self, x: Tensor, frame: Frame, state: State | None = None) -> Out:
        step = (frame.place.layer if frame.place else 0) - self.first
        return Out(x + self.table.weight[step] if 0 <= step < len(self.table.weight) else x, state)
