"""The position vector beside the token vector: x'_t = W [x_t ; p_t]. With W = [I I] it is x_t + p_t."""

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Heads, Linear, Position, PositionSpec, Site
from anyformer.parts.positions.sinusoidal import Sinusoidal


@dataclass(frozen=True, kw_only=True)
class Concatenate(PositionSpec, kind="concatenate"):
    """Puts the position vector beside the token vector and projects both, instead of adding them."""

    position: PositionSpec
    """Where the position vectors come from: a scheme that adds them to the token vectors."""

    def build(self, site: Site, heads: Heads) -> "ConcatenateModule":
        return ConcatenateModule(self.position.build_vectors(site, heads), heads.number * heads.channels)

    @classmethod
    def examples(cls) -> "tuple[Concatenate, ...]":
        return (cls(position=Sinusoidal()),)


class ConcatenateModule(Position):
    def __init__(self, inner: Position, width: int):
        super().__init__()
        self.inner, self.longest = inner, inner.longest
        self.project = Linear(2 * width, width, role="in")

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        nothing = x.new_zeros(positions.shape[0], *x.shape[1:])
        both = torch.cat((x, self.inner.embed(nothing, positions).expand_as(x)), dim=-1)
        return self.project(both).type_as(x)  # autocast must not round the whole stream
