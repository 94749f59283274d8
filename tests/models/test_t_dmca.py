"""T-DMCA and its two sizes with experts: the layers in turn, their blocks, and all checks of experts at full number."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.checking import unchecked
from torch import Tensor

from anyformer.core import Frame, Model, Site, Work, capture, cost, initialise
from anyformer.models import Block, Decoder, Stack
from anyformer.models.stack import BranchModule
from anyformer.parts.channels.experts import Experts, ExpertsPart
from anyformer.parts.channels.mlp import MLPPart
from anyformer.parts.inits.xavier import Xavier
from anyformer.parts.mixers.attention import AttentionPart
from anyformer.parts.mixers.memory_compressed import MemoryCompressedPart
from anyformer.training import load

row = pytest.mark.row
DIM, HIDDEN, ROWS, LENGTH = 12, 10, 2, 20
SAME_AT_256 = "gating and routing checks of the 128-expert model hold at 256"


def checked_at_both(*clauses: str, larger: tuple[pytest.MarkDecorator, ...] = ()) -> Any:
    """The test for 128 experts, with its clauses, and for 256 with the marks `larger`, of which one clause asks for the
    same."""
    smaller = pytest.param("t-dmca-128-experts", id="128", marks=row("SUM-05", clause=clauses))
    return pytest.mark.parametrize(
        "name",
        [smaller, pytest.param("t-dmca-256-experts", id="256", marks=[row("SUM-06", clause=SAME_AT_256), *larger])],
    )


def decoder(name: str) -> Decoder:
    spec = load(name)
    assert isinstance(spec, Decoder)
    return spec


def expert_block(name: str) -> Block:
    return decoder(name).stack.blocks["experts"]


def experts(name: str) -> Experts:
    spec = expert_block(name).branches[-1].part
    assert isinstance(spec, Experts)
    return spec


def built(spec: Experts, dim: int = DIM) -> ExpertsPart:
    part = replace(spec, hidden=HIDDEN).build(Site(dim=dim)).double()
    initialise(part, Xavier(), seed=0)
    return part


def tokens(rows: int = ROWS, length: int = LENGTH, seed: int = 0) -> Tensor:
    return torch.randn(rows, length, DIM, generator=torch.Generator().manual_seed(seed)).double()


def mixers(model: Any) -> list[type]:
    return [type(model.stack.layers[name].branches[0].part) for name in model.stack.order]


@row("SUM-04", clause="decoder of 5 layers: local and compressed in turn, L-M-L-M-L")
@row("SUM-05", clause="the compressed decoder with an expert feed-forward layer added")
@row("SUM-06", clause="the compressed decoder with an expert layer of 256 experts")
@pytest.mark.parametrize("name", ["t-dmca", "t-dmca-128-experts", "t-dmca-256-experts"])
def test_local_and_compressed_layers_take_turns_and_the_middle_one_has_the_experts(name: str) -> None:
    model: Any = decoder(name).build(device="meta")
    local, compressed = AttentionPart, MemoryCompressedPart
    assert mixers(model) == [local, compressed, local, compressed, local]
    nets = [type(model.stack.layers[name].branches[1].part) for name in model.stack.order]
    dense = [MLPPart] * 5
    assert nets == (dense if name == "t-dmca" else [*dense[:2], ExpertsPart, *dense[3:]])
    assert {part.stride for part in model.modules() if isinstance(part, compressed)} == {3}


@row("SUM-04", clause="local layers attend inside independent blocks of 256")
@row("SUM-04", clause="local attention equals a block-diagonal mask")
def test_a_local_layer_attends_inside_blocks_of_256_and_never_ahead() -> None:
    spec, at = decoder("t-dmca"), torch.arange(600)
    branch = spec.stack.blocks["local"].branches[0]
    part = replace(branch.part, heads=2).build(Site(dim=8))
    initialise(part, Xavier(), seed=0)
    x = torch.randn(1, 600, 8, generator=torch.Generator().manual_seed(0))
    with capture(part) as taps:
        part(x, Frame())
    inside = (at[:, None] // 256 == at // 256) & (at <= at[:, None])
    assert torch.equal(taps["pattern"][0][0, 0] > 0, inside)
    blocks = torch.cat([part(block, Frame()).y for block in x.split(256, dim=1)], dim=1)
    torch.testing.assert_close(part(x, Frame()).y, blocks, atol=1e-5, rtol=1e-4)


@row("SUM-04", clause="decoder of 5 layers: local and compressed in turn, L-M-L-M-L")
def test_compressed_layers_carry_a_token_from_one_block_to_the_next() -> None:
    """Three local layers alone keep blocks of 256 apart; with compressed layers between them nothing is apart."""
    spec = replace(decoder("t-dmca"), vocab=7, dim=32, max_len=300)
    text = torch.randint(7, (1, 300), generator=torch.Generator().manual_seed(0))
    other = text.clone()
    other[0, 4] = (text[0, 4] + 1) % 7
    for layout, reaches in ((spec.stack.layout, True), (("local",), False)):
        blocks = {name: spec.stack.blocks[name] for name in layout}
        model: Model = replace(spec, stack=Stack(blocks=blocks, layout=layout, depth=5)).build().eval()
        with torch.no_grad():
            changed = (model(text).y != model(other).y).any(-1)[0]
        assert not changed[:4].any() and changed[4:256].any()
        assert bool(changed[256:].any()) == reaches


@row("SUM-05", clause="the expert layer has 128 experts")
@row("SUM-06", clause="expert count read from the built model is 256")
@pytest.mark.parametrize(("name", "number"), [("t-dmca-128-experts", 128), ("t-dmca-256-experts", 256)])
def test_the_built_model_has_one_layer_of_as_many_experts_as_it_is_named_after(name: str, number: int) -> None:
    model = decoder(name).build(device="meta")
    (part,) = (module for module in model.modules() if isinstance(module, ExpertsPart))
    assert (part.e, part.k, part.d, part.f) == (number, 2, 512, 2048)
    assert part.up.shape == (number * 2048, 512) and part.down.shape == (number * 512, 2048)


@row("SUM-05", clause="parameter growth over the dense model is exact")
@row("SUM-06", clause="parameter growth over the dense model is exact at 256 experts")
@pytest.mark.parametrize(("name", "number"), [("t-dmca-128-experts", 128), ("t-dmca-256-experts", 256)])
def test_experts_add_their_matrices_and_two_routers_for_one_feed_forward_net(name: str, number: int) -> None:
    """The second router scales the noise; the two biases of the dense net have no counterpart."""
    d, f, work = 512, 2048, Work(length=16)
    dense, sparse = (cost(decoder(one), work).total for one in ("t-dmca", name))
    assert sparse.params - dense.params == number * (2 * d * f + 2 * d) - (2 * d * f + d + f)
    assert sparse.params == sum(weight.numel() for weight in decoder(name).build(device="meta").parameters())
    assert sparse.flops_forward - dense.flops_forward == 16 * (2 * 2 * d * f + 2 * 2 * d * number)  # one expert more


@checked_at_both("exactly k gates per token are non-zero; balance loss 0 at uniform")
def test_every_token_uses_two_experts_and_uniform_experts_have_no_loss(name: str) -> None:
    spec = experts(name)
    part, e = built(spec, dim=spec.experts), spec.experts
    with torch.no_grad():
        part.router[:e], part.router[e:] = torch.eye(e), -100.0  # almost no noise
    favourite = torch.zeros(e).double()
    favourite[:2] = torch.tensor([3.0, 2.0])
    even = torch.stack([favourite.roll(turn) for turn in range(e)])[None]
    with capture(part) as taps:
        loss = part.train()(even, Frame()).losses["balance"].detach()
    assert all(len({*choices}) == 2 and max(choices) < e for choices in taps["choices"][0][0].tolist())
    assert taps["gates"][0].shape == (1, e, 2) and (taps["gates"][0] > 0).all()
    assert float(loss) == pytest.approx(0, abs=1e-9)
    assert part(even[:, : e // 2], Frame()).losses["balance"].detach() > 1e-3


@checked_at_both("equals a loop over the experts when capacity is unbounded")
def test_the_mixture_is_a_loop_over_experts(name: str) -> None:
    part, x = built(experts(name)).eval(), tokens()
    gates = F.linear(x, part.router[: part.e])
    kept = gates.topk(2, dim=-1)
    gates = torch.zeros_like(gates).scatter(-1, kept.indices, kept.values.softmax(-1))
    y = torch.zeros_like(x)
    for index in range(part.e):
        up, down = part.up.split(part.f)[index], part.down.split(part.d)[index]
        y += gates[..., index, None] * (F.relu(x @ up.T) @ down.T)
    torch.testing.assert_close(part(x, Frame()).y, y)


def usage_variation(spec: Experts, weight: float) -> float:
    """CV of the use of experts after 30 steps, from a router that prefers a quarter of them."""
    part, x = built(replace(spec, balance=weight)).train(), tokens(8, 32, seed=3)
    x[..., 0] = 1.0
    part.router.data[: part.e // 4, 0] += 3.0
    optimizer = torch.optim.Adam(part.parameters(), lr=2e-2)
    torch.manual_seed(0)
    for step in range(30):
        with unchecked() if step else nullcontext():
            out = part(x, Frame())
        optimizer.zero_grad()
        ((out.y - x.tanh()).square().mean() + out.losses.get("balance", torch.zeros(()))).backward()
        optimizer.step()
    with capture(part) as taps, torch.no_grad():
        part.eval()(x, Frame())
    usage = F.one_hot(taps["choices"][0], part.e).double().sum((0, 1, 2))
    return float(usage.std(correction=0) / usage.mean())


@checked_at_both("k = E equals the dense mixture; expert usage CV falls with the loss", larger=(pytest.mark.slow,))
def test_all_experts_are_the_dense_mixture_and_the_loss_spreads_their_use(name: str) -> None:
    spec = experts(name)
    part, x = built(replace(spec, top_k=spec.experts)).eval(), tokens(1, 6)
    hidden = F.relu(torch.einsum("btd,efd->btef", x, part.up.unflatten(0, (part.e, -1))))
    outputs = torch.einsum("btef,edf->bted", hidden, part.down.unflatten(0, (part.e, -1)))
    gates = F.linear(x, part.router[: part.e]).softmax(-1)
    torch.testing.assert_close(part(x, Frame()).y, (gates[..., None] * outputs).sum(2))
    assert usage_variation(spec, 0.1) < 0.8 * usage_variation(spec, 0.0)


@checked_at_both(
    "overflowing tokens pass through the residual path only",
    "no token is dropped in evaluation: result independent of the batch",
)
def test_an_overflowing_token_keeps_its_residual_in_training_and_nothing_is_dropped_in_evaluation(name: str) -> None:
    branch = expert_block(name).branches[-1]
    limited = replace(branch, part=replace(experts(name), hidden=HIDDEN, capacity=1.0))
    module, x = BranchModule(limited, Site(dim=DIM)).double(), tokens(length=30)
    initialise(module, Xavier(), seed=0)
    x[..., 0] = 10.0
    router = module.get_parameter("part.router")
    with torch.no_grad():
        router[limited.part.experts :] = 0.0  # type: ignore[attr-defined]
        router[limited.part.experts :, 0] = -10.0  # type: ignore[attr-defined]
        router[:2, 0] = 9.0  # all tokens want the first two experts, which take four of each row
    with capture(module) as taps:
        y = module.train()(x, Frame()).y
    lost = (taps["part.choices"][0] == limited.part.experts).all(-1)  # type: ignore[attr-defined]
    assert lost.sum(1).tolist() == [26, 26] and module.after is not None
    assert torch.equal(y[lost], module.after(x, Frame())[lost])
    with capture(module) as taps:
        y = module.eval()(x, Frame()).y
    assert (taps["part.choices"][0] < 2).all() and "part.dropped" not in taps
    torch.testing.assert_close(module(x[1:], Frame()).y, y[1:])


@checked_at_both("auxiliary loss E sum f_i P_i is 1 at uniform routing")
def test_the_loss_of_softmax_gating_is_one_at_uniform_routing(name: str) -> None:
    """The presets gate with noise, and balance importance and load; this is the loss of their other gating."""
    spec = replace(experts(name), gating="softmax", balance=1.0)
    e = spec.experts
    part, even = built(spec, dim=e).train(), 9.0 * torch.eye(e).double()[None]
    with torch.no_grad():
        part.router[:] = torch.eye(e)
    one = even[:, :1].expand(-1, e, -1)
    losses = [float(part(x, Frame()).losses["balance"].detach()) for x in (even, one)]
    assert losses[0] == pytest.approx(1) and losses[1] > 10
