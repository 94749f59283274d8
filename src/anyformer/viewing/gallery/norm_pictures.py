"""Pictures of norms: a cube of batch, positions and channels with the inputs that one output depends on.

The dependence is measured: an input x is marked if dy / dx is not zero for the output y at the front corner.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool
from matplotlib.figure import Figure
from torch import Tensor

from anyformer.core import Frame, NormSpec, Site
from anyformer.drawing.figure_files import Drawing
from anyformer.viewing.gallery.fresh_parts import fresh
from anyformer.viewing.gallery.kind_labels import called

BATCH, LENGTH, DIM = 4, 5, 6
MARKED, OTHER = "#2767c4", "#dfe4ea20"


def depends(spec: NormSpec) -> Bool[Tensor, "b t d"]:
    """Whether the first output depends on each input, in training mode."""
    site = Site(dim=DIM)
    norm = fresh(spec.build(site), site)
    x = torch.randn(BATCH, LENGTH, DIM, generator=torch.Generator().manual_seed(0)).requires_grad_()
    (slopes,) = torch.autograd.grad(norm.train()(x, Frame())[0, 0, 0], x)
    return slopes != 0


def of_norms(specs: Sequence[NormSpec]) -> Drawing:
    """A drawing of several norms side by side."""

    def draw(figure: Figure) -> None:
        for place, spec in enumerate(specs, 1):
            axes = figure.add_subplot(1, len(specs), place, projection="3d")
            cube = depends(spec).numpy()
            colours = np.where(cube, MARKED, OTHER)
            axes.set_box_aspect(None, zoom=0.85)  # leave room for the label of the third axis
            axes.voxels(np.ones_like(cube), facecolors=colours, edgecolor="#9aa3ad", linewidth=0.3)
            axes.set(
                title=called(spec), xlabel="batch", ylabel="place", zlabel="channel", xticks=[], yticks=[], zticks=[]
            )

    return Drawing(draw, (3.6 * len(specs), 3.6))
