"""Convolutional parts: sizes, reach, kernels that are shares, and kernels that tokens make themselves."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from anyformer.core import Frame, Memory, Part, PartSpec, Site, decode, initialise
from anyformer.errors import SpecError
from anyformer.parts.inits.normal import NormalInit
from anyformer.training import load

DIM = 16


def built(kind: str, causal: bool = True, **fields: Any) -> Any:
    part = decode(PartSpec, {"kind": kind, **fields}).build(Site(dim=DIM, causal=causal))
    initialise(part, NormalInit(deviation=0.3), seed=0)
    return part


def reach(parts: list[Part], length: int) -> int:
    """How many tokens the last one of a row depends on."""
    x = torch.randn(1, length, DIM, dtype=torch.double, requires_grad=True)
    y: Tensor = x
    for part in parts:
        y = part.double()(y, Frame()).y
    (gradient,) = torch.autograd.grad(y[0, -1].sum(), x)
    return int((gradient[0].abs().sum(-1) > 0).sum())


@pytest.mark.row("CLM-10", clause="the formulas are exact, with constants and any biases")
@pytest.mark.row(
    "RNN-15",
    clause=("causal padding or same padding", "equals torch.nn.Conv1d", "k d^2 + d parameters, d of them biases"),
)
@pytest.mark.parametrize("causal", [True, False])
def test_conv_is_torchs_with_as_many_weights(causal: bool) -> None:
    part, peer = built("conv", causal), nn.Conv1d(DIM, DIM, 3, padding=2 if causal else "same")
    assert (
        sum(it.numel() for it in part.parameters()) == 3 * DIM**2 + DIM == sum(it.numel() for it in peer.parameters())
    )
    with torch.no_grad():
        peer.weight.copy_(part.taps.weight.unflatten(1, (3, DIM)).transpose(1, 2))
        peer.bias.copy_(part.taps.bias)
    x = torch.randn(2, 9, DIM)
    torch.testing.assert_close(part(x, Frame()).y, peer(x.mT).mT[:, :9])


@pytest.mark.row("CLM-11", clause="convolution takes T k d^2 operations, not T k + d^2")
@pytest.mark.row("RNN-15", clause="T k d^2 multiply-adds counted exactly, with same padding")
def test_conv_costs_k_d_squared_for_each_token() -> None:
    part = built("conv", causal=False)
    with FlopCounterMode(display=False) as counter:
        part(torch.randn(1, 9, DIM), Frame())
    assert counter.get_total_flops() == 2 * 9 * 3 * DIM**2


@pytest.mark.row("CLM-09", clause="breadth-first search finds ceil(log_k T) for dilated convolution")
@pytest.mark.row("RNN-15", clause="a dilated variant gives the path of logarithmic length (tree)")
@pytest.mark.row(
    "RNN-16",
    clause=(
        "layer l of the stack has dilation k^l",
        "receptive field measured by the gradient mask is k^L after L layers",
    ),
)
@pytest.mark.parametrize("kernel", [2, 3])
def test_dilated_layers_connect_k_to_the_l_tokens(kernel: int) -> None:
    for depth in (1, 2, 3, 4):
        layers = [built("conv", kernel=kernel, dilation=kernel**layer) for layer in range(depth)]
        assert reach(layers, kernel**depth + 5) == kernel**depth


@pytest.mark.row("WMT-01", clause="receptive field measured equals its formula")
def test_bytenets_dilations_reach_as_far_as_the_formula_says() -> None:
    blocks = [built("byte_net", dilation=dilation) for dilation in (1, 2, 4, 8, 16)]
    assert reach(blocks, 80) == 1 + 2 * (1 + 2 + 4 + 8 + 16)


@pytest.mark.row("WMT-01", clause="kernel 3, dilations 1, 2, 4, 8, 16 repeating, in residual blocks")
@pytest.mark.parametrize("half", ["encoder", "decoder"])
def test_bytenets_blocks_are_residual_with_a_kernel_of_three_and_dilations_that_double(half: str) -> None:
    model: Any = load("bytenet", f"model.encoder.dim={DIM}", f"model.decoder.dim={DIM}").build(seed=0).eval()
    layers = [layer.branches[0] for layer in getattr(model, half).stack.calls()][1:]
    before, x = 2 if half == "decoder" else 1, torch.randn(1, 60, DIM, requires_grad=True)
    for layer, dilation in zip(layers, [1, 2, 4, 8, 16] * 2, strict=True):
        (gradient,) = torch.autograd.grad(layer.part(x, Frame()).y[0, 40].sum(), x)
        met = (gradient[0].abs().sum(-1) > 0).nonzero().flatten() - 40
        assert met.tolist() == [dilation * (tap - before) for tap in range(3)]
        for weight in layer.part.parameters():
            weight.data.zero_()
        assert torch.equal(layer(x, Frame()).y, x)


@pytest.mark.row("WMT-01", clause="dilated conv encoder, masked dilated conv decoder stacked on it")
def test_bytenets_encoder_feels_both_sides_and_its_decoder_the_encoder_up_to_its_own_place() -> None:
    model: Any = load("bytenet", f"model.encoder.dim={DIM}", f"model.decoder.dim={DIM}").build(seed=0).double().eval()
    x, y = (torch.randn(1, 140, DIM, dtype=torch.double, requires_grad=True) for _ in range(2))
    encoded: Tensor = x
    for layer in model.encoder.stack.calls()[1:]:
        encoded = layer(encoded, Frame()).y
    (both,) = torch.autograd.grad(encoded[0, 70].sum(), x)
    decoded = model.decoder.stack(y, Frame(memory=Memory(x=x))).y
    found = torch.autograd.grad(decoded[0, 130].sum(), (x, y))
    near, memory, own = ((it[0].abs().sum(-1) > 0).nonzero().flatten().tolist() for it in (both, *found))
    assert near == list(range(70 - 62, 70 + 63))
    assert memory == own == list(range(130 - 2 * 62, 131))


@pytest.mark.row("WMT-04", clause="gated (GLU) conv blocks of kernel 3, residual sum times sqrt(0.5)")
@pytest.mark.parametrize("half", ["encoder", "decoder"])
def test_a_block_of_convs2s_is_torchs_gated_convolution_and_half_of_the_residual_sum_in_square(half: str) -> None:
    model: Any = load("convs2s", f"model.encoder.dim={DIM}", f"model.decoder.dim={DIM}").build(seed=0).eval()
    x, pads = torch.randn(2, 9, DIM), (2, 0) if half == "decoder" else (1, 1)
    for layer in getattr(model, half).stack.calls():
        branch = layer.branches[0]
        branch.part.taps.bias.data.normal_()
        kernel = branch.part.taps.weight.view(2 * DIM, 3, DIM).mT
        row = nn.functional.pad(x.mT, pads)
        gated = nn.functional.glu(nn.functional.conv1d(row, kernel, branch.part.taps.bias), dim=1).mT
        torch.testing.assert_close(branch(x, Frame()).y, (x + gated) * 0.5**0.5)


@pytest.mark.row("WMT-04", clause="learned position embeddings")
@pytest.mark.parametrize("half", ["encoder", "decoder"])
def test_convs2s_adds_a_learned_vector_of_the_place(half: str) -> None:
    model: Any = load("convs2s", f"model.encoder.dim={DIM}", f"model.decoder.dim={DIM}").build(seed=0).eval()
    one, seen = getattr(model, half), []
    one.stack.register_forward_pre_hook(lambda _stack, args: seen.append(args[0]))
    memory = model.encode(torch.zeros(1, 5, dtype=torch.long), Frame())
    model(torch.zeros(1, 5, dtype=torch.long), Frame(memory=memory))
    (table,) = (it for it in one.position.parameters())
    assert table.requires_grad and table.shape == (1024, DIM)
    torch.testing.assert_close(seen[0][0] - seen[0][0, :1], table[:5] - table[:1])


@pytest.mark.row("NAR-37", clause="weights sum to 1 over k")
@pytest.mark.row("NAR-38", clause="kernel softmax-normalised and shared over H groups of channels")
@pytest.mark.parametrize("kind", ["lightweight_conv", "dynamic_conv"])
def test_kernels_are_shares(kind: str) -> None:
    part, seen = built(kind, kernel=9), []
    part.weights.register_forward_hook(lambda _tap, _args, value: seen.append(value))
    part(torch.randn(2, 11, DIM), Frame())
    assert seen[0].shape[-2:] == (4, 9) and seen[0].min() > 0
    torch.testing.assert_close(seen[0].sum(-1), torch.ones(seen[0].shape[:-1]))


@pytest.mark.row(
    "NAR-37",
    clause=(
        "a GLU, then the depth-wise convolution, then a linear map",
        "kernel at t is softmax_k(W^Q x_t), predicted from x_t alone",
        "each of H groups of channels shares its kernel",
        "equals an explicit loop over positions",
        "causal in the decoder",
    ),
)
@pytest.mark.row("NAR-38", clause="a GLU, depth-wise convolution with a fixed kernel, then a linear map")
@pytest.mark.parametrize("causal", [True, False])
def test_dynamic_convolution_is_its_definition(causal: bool) -> None:
    part, x, before = built("dynamic_conv", causal, kernel=5), torch.randn(1, 9, DIM), 4 if causal else 2
    value, gate = part.inner(x).chunk(2, dim=-1)
    u = value * gate.sigmoid()
    v = torch.zeros_like(u)
    for t in range(9):
        kernel = part.kernel(u[0, t]).view(4, 5).softmax(-1)
        for j in range(5):
            if 0 <= t + j - before < 9:
                v[0, t] += kernel[:, j].repeat_interleave(DIM // 4) * u[0, t + j - before]
    torch.testing.assert_close(part(x, Frame()).y, part.out(v))


@pytest.mark.row("NAR-37", clause="a constant predictor equals the lightweight convolution")
@pytest.mark.row("NAR-38", clause="a GLU, depth-wise convolution with a fixed kernel, then a linear map")
def test_a_dynamic_kernel_that_never_changes_is_a_lightweight_one() -> None:
    dynamic, light, x = built("dynamic_conv"), built("lightweight_conv"), torch.randn(2, 11, DIM)
    light.inner, light.out = dynamic.inner, dynamic.out
    with torch.no_grad():
        dynamic.kernel.weight.zero_()
        light.kernel.zero_()
    torch.testing.assert_close(dynamic(x, Frame()).y, light(x, Frame()).y)


@pytest.mark.row("NAR-37", clause=("causal in the decoder", "k = 9: encoder offsets -4..4, decoder -8..0"))
@pytest.mark.row("NAR-38")
@pytest.mark.parametrize("kind", ["lightweight_conv", "dynamic_conv"])
@pytest.mark.parametrize(("causal", "offsets"), [(True, range(-8, 1)), (False, range(-4, 5))])
def test_a_kernel_of_nine_meets_eight_tokens_before_its_own_or_four_on_each_side(
    kind: str, causal: bool, offsets: range
) -> None:
    part, x = built(kind, causal, kernel=9), torch.randn(1, 18, DIM, requires_grad=True)
    (gradient,) = torch.autograd.grad(part(x, Frame()).y[0, 10].sum(), x)
    met = (gradient[0].abs().sum(-1) > 0).nonzero().flatten() - 10
    assert met.tolist() == list(offsets)


@pytest.mark.row("NAR-38", clause="equals the fairseq formula")
@pytest.mark.parametrize("causal", [True, False])
def test_lightweight_convolution_is_fairseqs(causal: bool) -> None:
    part, x = built("lightweight_conv", causal, kernel=5), torch.randn(2, 9, DIM)
    u = nn.functional.glu(x @ part.inner.weight.T, dim=-1)
    padded = nn.functional.pad(u.transpose(0, 1), (0, 0, 0, 0, *((4, 0) if causal else (2, 2))))  # [t b c]
    windows = padded.unfold(0, 5, 1).reshape(9 * 2 * 4, DIM // 4, 5)  # [t b h, c / h, k]
    kernels = part.kernel.softmax(-1)[None].expand(9 * 2, 4, 5).reshape(9 * 2 * 4, 5, 1)
    v = torch.bmm(windows, kernels).view(9, 2, DIM).transpose(0, 1)
    torch.testing.assert_close(part(x, Frame()).y, v @ part.out.weight.T)


@pytest.mark.row("NAR-37", "NAR-38")
@pytest.mark.parametrize("kind", ["lightweight_conv", "dynamic_conv"])
def test_a_pointwise_matrix_mixes_the_convolved_channels_before_the_output_projection(kind: str) -> None:
    part, plain = (built(kind, kernel=5, pointwise=pointwise) for pointwise in (True, False))
    x, plain.inner, plain.kernel, plain.out = torch.randn(2, 9, DIM), part.inner, part.kernel, nn.Identity()
    part.pointwise.bias.data.normal_()
    mixed = plain(x, Frame()).y @ part.pointwise.weight.T + part.pointwise.bias
    torch.testing.assert_close(part(x, Frame()).y, mixed @ part.out.weight.T)
    assert sum(parameter.numel() for parameter in part.pointwise.parameters()) == DIM**2 + DIM


@pytest.mark.row("NAR-38")
def test_lightweight_convolution_has_three_matrices_and_a_few_kernels() -> None:
    assert sum(it.numel() for it in built("lightweight_conv", kernel=9).parameters()) == 3 * DIM**2 + 4 * 9


@pytest.mark.row("WMT-01", clause="dynamic unfolding: target length is 1.2 times source length")
def test_a_bytenet_lengthens_its_source_and_stands_on_it_place_by_place() -> None:
    unfold = built("unfold", causal=False)
    valid = torch.tensor([[True] * 10, [True] * 5 + [False] * 5])
    out = unfold(torch.ones(2, 10, DIM), Frame(valid=valid))
    assert out.y.shape[1] == 12 and out.frame.valid.sum(1).tolist() == [12, 6]
    assert out.y.sum(-1).bool().sum(1).tolist() == [10, 5]
    aligned = decode(PartSpec, {"kind": "cross", "part": {"kind": "aligned"}}).build(Site(dim=DIM))
    memory = Memory(x=torch.randn(2, 4, DIM), valid=torch.tensor([[True] * 4, [False, True, True, True]]))
    y = aligned(torch.zeros(2, 6, DIM), Frame(memory=memory)).y
    assert torch.equal(y[0, :4], memory.x[0]) and torch.equal(y[1, :3], memory.x[1, 1:])
    assert not y[0, 4:].any() and not y[1, 3:].any()
    word = torch.randn(2, 1, DIM)
    y = aligned(torch.zeros(2, 3, DIM), Frame(memory=Memory(x=word))).y
    assert torch.equal(y[:, :1], word) and not y[:, 1:].any()


@pytest.mark.row("WMT-01", clause="decoder is causal: later targets leave earlier logits unchanged")
@pytest.mark.row("WMT-04", clause="decoder is causal: later targets leave earlier logits unchanged")
@pytest.mark.parametrize("preset", ["bytenet", "convs2s"])
def test_a_convolutional_decoder_does_not_see_what_it_is_to_say(preset: str) -> None:
    model: Any = load(preset, f"model.encoder.dim={DIM}", f"model.decoder.dim={DIM}").build(seed=0).eval()
    memory, tokens = model.encode(torch.arange(7)[None], Frame()), torch.arange(6)[None]
    one, other = (model(it, Frame(memory=memory)).y[0] for it in (tokens, tokens.where(tokens != 4, 20)))
    assert torch.equal(one[:4], other[:4]) and (one[4:] != other[4:]).any(-1).all()


def test_what_looks_at_itself_is_refused_inside_cross() -> None:
    for kind in ("conv", "conv_glu", "lightweight_conv", "dynamic_conv", "byte_net"):
        with pytest.raises(SpecError, match="its own tokens"):
            decode(PartSpec, {"kind": "cross", "part": {"kind": kind}}).build(Site(dim=DIM))
