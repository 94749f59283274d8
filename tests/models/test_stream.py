"""The stream of a stack, which every pass over it has to read and write: its precision is that of the products."""

import pytest
import torch

from anyformer.core import Frame, ModelSpec, NormSpec, Site, Work, capture
from anyformer.core.costs import kept_bytes
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.embeddings.factorized import Factorized
from anyformer.parts.joins.rezero import ReZero
from anyformer.parts.norms.layer import LayerNorm
from anyformer.parts.norms.rms import RMSNorm
from anyformer.parts.norms.scale import ScaleNorm

BRANCHES = {
    "pre": Branch(part=MLP(), norm=LayerNorm()),
    "post": Branch(part=MLP(), norm=LayerNorm(), place="post"),
    "sandwich": Branch(part=MLP(), norm=RMSNorm(), place="sandwich"),
    "a gain of its own": Branch(part=MLP(), join=ReZero()),
}


def model_of(branch: Branch) -> ModelSpec:
    stack = Stack(blocks={"layer": Block(branches=(branch,))}, depth=2)
    return Decoder(vocab=11, dim=16, stack=stack, exit_norm=LayerNorm())


@pytest.mark.row("OPT-11", clause="computes in bf16 or fp16 by autocast")
@pytest.mark.parametrize("branch", BRANCHES.values(), ids=BRANCHES)
@pytest.mark.parametrize(
    ("products", "stream"), [(torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32), (None, torch.float32)]
)
def test_the_stream_is_as_products_are_where_its_sums_have_room(
    branch: Branch, products: torch.dtype | None, stream: torch.dtype
) -> None:
    model = model_of(branch).build()
    with torch.autocast("cpu", products, enabled=products is not None), capture(model, "*.stream") as seen:
        model(torch.arange(8)[None], Frame())
    assert len(seen) == 2
    assert {layer.dtype for calls in seen.values() for layer in calls} == {stream}


def test_a_table_of_few_columns_does_not_halve_it() -> None:
    stack = Stack(blocks={"layer": Block(branches=(BRANCHES["a gain of its own"],))}, depth=2)
    model = Decoder(vocab=11, dim=16, stack=stack, embedding=Factorized(width=4)).build()
    with torch.autocast("cpu", torch.float16), capture(model, "*.stream") as seen:
        model(torch.arange(8)[None], Frame())
    assert {layer.dtype for calls in seen.values() for layer in calls} == {torch.float32}


@pytest.mark.parametrize("norm", [RMSNorm(), ScaleNorm()], ids=lambda norm: norm.kind)
def test_a_gain_of_half_precision_does_not_round_what_it_scales(norm: NormSpec) -> None:
    module, x = norm.build(Site(dim=64)), torch.randn(2, 3, 64)
    for gain in module.parameters():
        torch.nn.init.constant_(gain, 2.0)
    exact = module(x, Frame())
    torch.testing.assert_close(module.bfloat16()(x, Frame()), exact, rtol=1e-6, atol=1e-6)


def test_half_as_much_of_it_is_kept_for_the_backward_pass() -> None:
    spec, work = model_of(BRANCHES["pre"]), Work(batch=4, length=64)
    halves = 2 * work.batch * work.length * 16  # what one value for each channel takes in half precision
    saved = kept_bytes(spec, work, torch.float16) - kept_bytes(spec, work, torch.bfloat16)
    assert saved >= 3 * halves  # in front of both layers and behind them
