"""Pictures of position encodings.

For an encoding that is added to token vectors: the added value by position and channel, T x d. For an encoding inside
attention: the score of two vectors of ones at every pair of positions.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from anyformer.core import Heads, Marks, Position, PositionSpec, Site
from anyformer.drawing.figure_files import Drawing
from anyformer.viewing.gallery.fresh_parts import fresh
from anyformer.viewing.gallery.kind_labels import called

LENGTH, DIM, HEADS = 64, 64, 4


def built(spec: PositionSpec, heads: Heads) -> Position:
    """A position module with initialised weights."""
    site = Site(dim=DIM, max_len=LENGTH)
    return fresh(spec.build(site, heads), site)


@torch.no_grad()
def table(spec: PositionSpec) -> Float[Tensor, "t d"]:
    """The values that the encoding adds to token vectors."""
    return built(spec, Heads(1, DIM)).embed(torch.zeros(1, LENGTH, DIM), torch.arange(LENGTH)[None])[0]


@torch.no_grad()
def scores(spec: PositionSpec) -> Float[Tensor, "t s"]:
    """Attention scores of two vectors of ones at every pair of positions, in the first head."""
    heads = Heads(HEADS, DIM // HEADS, (DIM // HEADS) ** -0.5)
    position, places = built(spec, heads), Marks(torch.arange(LENGTH)[None])
    ones = torch.ones(1, LENGTH, HEADS, heads.channels)
    q, k = (position.rotate(ones, places.position) for _ in range(2))
    products = torch.einsum("bthc,bshc->bhts", q * heads.scale, k)
    bias = position.bias(q, k, places, places)
    return (products if bias is None else products + bias.dense())[0, 0]


def of_positions(specs: Sequence[PositionSpec]) -> Drawing:
    """A drawing of several position encodings side by side."""

    def draw(figure: Figure) -> None:
        for axes, spec in zip(figure.subplots(1, len(specs), squeeze=False)[0], specs, strict=True):
            enters = type(built(spec, Heads(1, DIM))).enters()
            shown = table(spec) if enters else scores(spec)
            image = axes.imshow(shown.numpy(), cmap="RdBu", aspect="auto", interpolation="nearest")
            axes.set(title=called(spec), xlabel="channel" if enters else "position of the key")
            axes.set_ylabel("position" if enters else "position of the query")
            figure.colorbar(image, ax=axes, shrink=0.8)

    return Drawing(draw, (4.6 * len(specs), 3.8))
