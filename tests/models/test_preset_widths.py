"""Presets have one width throughout: what hooks see at every sub-layer."""

from typing import Any

import pytest
import torch
from tests.models.cases import load
from tests.models.test_presets import cut, every_kind, every_preset, halves
from torch import nn

from anyformer.core import Frame, ModelSpec
from anyformer.models.stack import BranchModule


def sub_layer_widths(spec: ModelSpec) -> list[tuple[int, int]]:
    """Widths of what goes into and comes out of each sub-layer and its part, as hooks see them in a call."""
    model, widths = spec.build(device="meta"), []

    def look(_module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        widths.append((args[0].shape[-1], out.y.shape[-1]))

    for module in model.modules():
        if isinstance(module, BranchModule):
            module.register_forward_hook(look)
            module.part.register_forward_hook(look)
    tokens = torch.zeros(1, 4, dtype=torch.long, device="meta")
    with torch.no_grad():
        model(tokens, Frame(memory=model.encode(tokens, Frame()) if spec.needs_source else None))
    return widths


@pytest.mark.row("TRF-14", clause="the input and the output of every sub-layer have size d")
@every_kind
def test_every_sub_layer_keeps_the_width(name: str) -> None:
    spec = cut(name, depth=1)
    width = next(halves(spec)).dim
    layers = [half.stack.blocks[name] for half in halves(spec) for name in half.stack.order]
    assert sub_layer_widths(spec) == [(width, width)] * 2 * sum(len(layer.branches) for layer in layers)


@pytest.mark.slow
@pytest.mark.row("TRF-14", clause="a shape hook confirms it on every sub-layer of every preset")
@every_preset
def test_a_hook_sees_one_width_at_every_sub_layer_of_the_whole_preset(name: str) -> None:
    spec = load(name)
    layers = [(half.dim, half.stack.blocks[name]) for half in halves(spec) for name in half.stack.order]
    expected = [(dim, dim) for dim, layer in layers for _ in layer.branches for _ in ("part", "sub-layer")]
    assert expected and sorted(sub_layer_widths(spec)) == sorted(expected)
