"""The cells of the Evolved Transformer: parts side by side, parts in a chain, separable convolutions."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Frame, Memory, Part, PartSpec, Site, decode, initialise
from anyformer.errors import SpecError
from anyformer.models.stack import BranchModule
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.mixers.separable_conv import SeparableConvPart
from anyformer.training import load

DIM = 16
NARROW = {"kind": "conv", "kernel": 3, "activation": "relu"}
WIDE = {"kind": "conv", "kernel": 1, "activation": "relu"}
ATTENTION = {"kind": "attention", "heads": 2}


def built(spec: dict[str, Any], causal: bool = True, width: int | None = None) -> Any:
    part = decode(PartSpec, spec).place(Site(dim=DIM, causal=causal, width=width))
    initialise(part, NormalInit(deviation=0.3), seed=0)
    for parameter in part.parameters():
        if parameter.dim() == 1:
            parameter.data.normal_()
    return part


def lanes(*parts: dict[str, Any], **expansion: float) -> dict[str, Any]:
    """`parallel` of these parts, the last one with an expansion of its own."""
    members: list[dict[str, Any]] = [{"part": part} for part in parts]
    return {"kind": "parallel", "lanes": [*members[:-1], members[-1] | expansion]}


def cell(half: str) -> list[Any]:
    """The branches of the first cell of one half of the preset, narrow."""
    sizes = [f"model.{side}.dim=48" for side in ("encoder", "decoder")]
    model: Any = (
        load("vanilla-evolved", *sizes, "model.encoder.vocab=32", "model.decoder.vocab=32").build(seed=0).eval()
    )
    return [*getattr(model, half).stack.calls()[0].branches]


@pytest.mark.row("NAR-39", clause="then LayerNorm and separable conv 9x1 of d/2, padded to d")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("width", [None, 5])
def test_a_separable_convolution_is_a_loop_over_taps_then_a_matrix(causal: bool, width: int | None) -> None:
    part = built({"kind": "separable_conv", "kernel": 5, "activation": "relu"}, causal, width)
    x, before = torch.randn(2, 9, DIM, requires_grad=True), 4 if causal else 2
    v = torch.zeros(2, 9, DIM)
    for t in range(9):
        for j in range(5):
            if 0 <= t + j - before < 9:
                v[:, t] = v[:, t] + part.kernel[:, j] * x[:, t + j - before]
    mine, loop = part(x, Frame()).y, (v @ part.channels.weight.T + part.channels.bias).relu()
    torch.testing.assert_close(mine, loop, atol=1e-5, rtol=1e-5)
    pull, learned = torch.randn_like(mine), [x, *part.parameters()]
    gradients = [torch.autograd.grad((y * pull).sum(), learned, retain_graph=True) for y in (mine, loop)]
    for got, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.row("NAR-39")
def test_a_separable_convolution_is_torchs_depthwise_one_and_a_pointwise_one() -> None:
    part, x = built({"kind": "separable_conv", "kernel": 3}, causal=False, width=7), torch.randn(2, 9, DIM)
    depthwise = F.conv1d(x.mT, part.kernel[:, None], padding=1, groups=DIM)
    torch.testing.assert_close(part(x, Frame()).y, F.linear(depthwise.mT, part.channels.weight, part.channels.bias))
    assert sum(parameter.numel() for parameter in part.parameters()) == 3 * DIM + 7 * DIM + 7


@pytest.mark.row("NAR-39", clause="parallel branches equal the sum of the two computed alone")
def test_parallel_parts_are_the_sum_of_the_parts_alone() -> None:
    part, x = built(lanes(ATTENTION, NARROW, expansion=0.5)), torch.randn(2, 9, DIM)
    alone = [lane(x, Frame()).y for lane in part.lanes]
    assert [y.shape[-1] for y in alone] == [DIM, DIM // 2]
    expected = alone[0].clone()
    expected[..., : DIM // 2] += alone[1]
    torch.testing.assert_close(part(x, Frame()).y, expected)


@pytest.mark.row("NAR-39", clause="parallel branches equal the sum of the two computed alone")
@pytest.mark.parametrize("half", ["encoder", "decoder"])
def test_the_branches_of_a_cell_equal_the_sum_of_the_two_computed_alone(half: str) -> None:
    wide, x = cell(half)[1].part.parts[0], torch.randn(2, 9, 48)
    first, second = (lane(x, Frame()).y for lane in wide.lanes)
    assert second.shape[-1] == 24 and first.shape[-1] == {"encoder": 4 * 48, "decoder": 2 * 48}[half]
    together = wide(x, Frame()).y
    torch.testing.assert_close(together[..., :24], first[..., :24] + second)
    torch.testing.assert_close(together[..., 24:], first[..., 24:])


@pytest.mark.row("NAR-39")
def test_a_chain_norms_and_runs_its_steps_in_order_and_pads_the_last() -> None:
    steps = [{"part": WIDE, "expansion": 2.0}, {"part": NARROW, "norm": {"kind": "layer"}, "expansion": 0.5}]
    part, x = built({"kind": "chain", "steps": steps}), torch.randn(2, 9, DIM)
    hidden = part.parts[0](x, Frame()).y
    assert hidden.shape[-1] == 2 * DIM
    y = part.parts[1](part.norms["1"](hidden, Frame()), Frame()).y
    torch.testing.assert_close(part(x, Frame()).y, torch.cat((y, torch.zeros(2, 9, DIM // 2)), dim=-1))


@pytest.mark.row(
    "NAR-39",
    clause=(
        "encoder branches: 1x1 dense 4d ReLU, conv 3x1 d/2 ReLU, padded sum",
        "then LayerNorm and separable conv 9x1 of d/2, padded to d",
    ),
)
def test_the_convolutions_of_the_encoder_cell_are_written_out() -> None:
    part, x = cell("encoder")[1].part, torch.randn(2, 12, 48)
    dense, conv, narrow = *part.parts[0].lanes, part.parts[1]
    left = (x @ dense.taps.weight.T).relu()
    weight = conv.taps.weight.unflatten(1, (3, 48)).transpose(1, 2)
    right = F.conv1d(x.mT, weight, padding=1).mT.relu()
    hidden = F.layer_norm(left + F.pad(right, (0, 4 * 48 - 24)), (4 * 48,), eps=1e-6)
    depthwise = F.conv1d(hidden.mT, narrow.kernel[:, None], padding=4, groups=4 * 48).mT
    y = F.pad(depthwise @ narrow.channels.weight.T + narrow.channels.bias, (0, 24))
    assert narrow.kernel.shape == (4 * 48, 9) and narrow.channels.weight.shape == (24, 4 * 48)
    torch.testing.assert_close(part(x, Frame()).y, y, atol=1e-5, rtol=1e-4)


@pytest.mark.row(
    "NAR-39",
    clause=(
        "decoder branches: sepconv 11x1 2d ReLU and sepconv 7x1 d/2",
        "their sum goes through LayerNorm and sepconv 7x1 to d",
    ),
)
def test_the_convolutions_of_the_decoder_cell_are_written_out() -> None:
    part, x = cell("decoder")[1].part, torch.randn(2, 12, 48)

    def separable(conv: Any, x: Tensor) -> Tensor:
        channels, taps = conv.kernel.shape
        depthwise = F.conv1d(F.pad(x.mT, (taps - 1, 0)), conv.kernel[:, None], groups=channels).mT
        return depthwise @ conv.channels.weight.T + conv.channels.bias

    left, right, last = *part.parts[0].lanes, part.parts[1]
    assert [conv.kernel.shape[1] for conv in (left, right, last)] == [11, 7, 7]
    assert [conv.channels.weight.shape[0] for conv in (left, right, last)] == [2 * 48, 24, 48]
    hidden = separable(left, x).relu() + F.pad(separable(right, x), (0, 2 * 48 - 24))
    y = separable(last, F.layer_norm(hidden, (2 * 48,), eps=1e-6))
    torch.testing.assert_close(part(x, Frame()).y, y, atol=1e-5, rtol=1e-4)


@pytest.mark.row(
    "NAR-39",
    clause=(
        "encoder cell (2 layers): GLU, conv branches, self-attention, FFN",
        "decoder cell starts: self-attention of 2H heads + cross-attention of H",
        "decoder cell ends: self-attention, cross-attention, FFN with swish",
        "6 cells in each stack",
    ),
)
def test_the_preset_has_six_cells_of_the_right_parts_in_each_half() -> None:
    spec: Any = load("vanilla-evolved")
    assert (spec.encoder.stack.depth, spec.decoder.stack.depth) == (6, 6)
    gate, convs, look, net = (branch.part for branch in spec.encoder.stack.blocks["layer"].branches)
    assert (gate.kind, gate.kernel, convs.kind, look.kind, look.heads) == ("conv_glu", 1, "chain", "attention", 12)
    assert (net.kind, net.activation) == ("mlp", "relu")
    both, convs, look, cross, net = (branch.part for branch in spec.decoder.stack.blocks["layer"].branches)
    itself, source = (lane.part for lane in both.lanes)
    assert (itself.kind, itself.heads, itself.head_dim) == ("attention", 24, 64)
    assert (source.kind, source.part.heads) == ("cross", 12) and convs.kind == "chain"
    assert (look.kind, look.heads, cross.kind, cross.part.heads) == ("attention", 12, "cross", 12)
    assert (net.kind, net.activation) == ("mlp", "silu")
    x, (glu, *_) = torch.randn(1, 5, 48), cell("encoder")
    a, g = (x @ glu.part.taps.weight.T).chunk(2, dim=-1)
    torch.testing.assert_close(glu.part(x, Frame()).y, a * g.sigmoid())


@pytest.mark.row("NAR-39", clause="decoder cell starts: self-attention of 2H heads + cross-attention of H")
def test_the_decoder_cell_adds_attention_to_itself_and_to_the_source() -> None:
    part, x = cell("decoder")[0].part, torch.randn(2, 9, 48)
    frame = Frame(memory=Memory(x=torch.randn(2, 6, 48)))
    itself, source = (lane(x, frame).y for lane in part.lanes)
    torch.testing.assert_close(part(x, frame).y, itself + source)
    assert itself.any() and source.any()


@pytest.mark.row("NAR-39", clause="separable convolutions of the decoder are causal")
def test_separable_convolutions_of_the_decoder_see_no_later_token() -> None:
    convs = [
        module for branch in cell("decoder") for module in branch.modules() if isinstance(module, SeparableConvPart)
    ]
    assert len(convs) == 3
    for conv in convs:
        taps, x = conv.span.taps, torch.randn(1, 24, conv.kernel.shape[0], requires_grad=True)
        (gradient,) = torch.autograd.grad(conv(x, Frame()).y[0, 15].square().sum(), x)
        met = (gradient[0].abs().sum(-1) > 0).nonzero().flatten() - 15
        assert met.tolist() == list(range(1 - taps, 1))
    x = torch.randn(1, 24, 48, requires_grad=True)
    branch: BranchModule = cell("decoder")[1]
    (gradient,) = torch.autograd.grad(branch(x, Frame()).y[0, 15].square().sum(), x)
    assert gradient[0, :16].any() and not gradient[0, 16:].any()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (lanes(ATTENTION, ATTENTION, expansion=0.5), "attention cannot give 8 channels of 16"),
        (lanes(ATTENTION, NARROW, expansion=2.0), "gives 32 channels; the sum has 16"),
        ({"kind": "parallel", "lanes": []}, "give at least one"),
        ({"kind": "chain", "steps": []}, "give at least one"),
        ({"kind": "chain", "steps": [{"part": NARROW, "expansion": 2.0}]}, "the last step gives 32 channels where 16"),
        ({"kind": "chain", "steps": [{"part": ATTENTION, "expansion": 2.0}]}, "attention cannot give 32 channels"),
        ({"kind": "chain", "steps": [{"part": {"kind": "unfold"}}]}, "unfold changes the length"),
    ],
)
def test_widths_that_do_not_fit_are_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        built(spec, causal="unfold" not in str(spec))


def test_parallel_and_chain_step_as_they_run() -> None:
    steps = [
        {"part": lanes(WIDE, NARROW, expansion=0.5), "expansion": 2.0},
        {"part": {"kind": "separable_conv", "kernel": 3}},
    ]
    part: Part = built({"kind": "chain", "steps": steps})
    x, state, pieces = torch.randn(2, 7, DIM), part.init_state(2, 7), []
    with torch.no_grad():
        for t in range(7):
            out = part(x[:, t : t + 1], Frame(positions=torch.full((2, 1), t)), state)
            state = out.state
            pieces.append(out.y)
        torch.testing.assert_close(torch.cat(pieces, dim=1), part(x, Frame()).y, atol=1e-5, rtol=1e-5)
