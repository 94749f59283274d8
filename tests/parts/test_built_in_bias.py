"""A bias that is built in: which tokens an output depends on is fixed before anything is learned."""

import pytest
import torch
from torch import Tensor

from anyformer.core import Frame, Marks, PartSpec, Site, initialise
from anyformer.parts.inits.xavier import Xavier
from anyformer.parts.masks.global_tokens import GlobalTokens
from anyformer.parts.masks.window import Window
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.mixers.conv import Conv
from anyformer.parts.mixers.lightweight_conv import LightweightConv

DIM, LENGTH = 8, 12
POSITION = torch.arange(LENGTH)
NEAR = (POSITION[:, None] - POSITION).abs()
GRAPH = Window(size=2) | GlobalTokens(tokens=1)
"""A chain of neighbours with one node that is connected to all."""
BIASES: dict[str, tuple[PartSpec, Tensor]] = {
    "convolution": (Conv(kernel=5), NEAR <= 2),
    "lightweight convolution": (LightweightConv(kernel=3), NEAR <= 1),
    "window": (Attention(heads=2, mask=Window(size=3)), NEAR < 3),
    "graph": (Attention(heads=2, mask=GRAPH), (NEAR < 2) | (POSITION == 0) | (POSITION[:, None] == 0)),
    "none": (Attention(heads=2), NEAR >= 0),
}


@pytest.mark.row("XF-13", clause="a bias is built in: local convolution, window or graph mask")
@pytest.mark.parametrize("bias", BIASES)
def test_an_output_depends_on_its_neighbours_in_the_graph_and_on_no_other_token(bias: str) -> None:
    spec, edges = BIASES[bias]
    part = spec.place(Site(dim=DIM, causal=False))
    initialise(part, Xavier(), 0)
    x = torch.randn(1, LENGTH, DIM, generator=torch.Generator().manual_seed(0))
    slopes = torch.autograd.functional.jacobian(lambda x: part(x, Frame()).y[0].sum(-1), x)[:, 0]  # [t s d]
    assert torch.equal(slopes.abs().amax(-1) > 1e-7, edges)


def test_the_mask_of_the_graph_is_its_edges() -> None:
    marks = Marks(POSITION[None])
    assert torch.equal(GRAPH.allows(marks.as_queries(), marks.as_keys())[0], BIASES["graph"][1])
