"""Linformer: full attention when nothing is compressed, and linear in the length when something is."""

from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from anyformer.core import Call, Frame, Site, capture, initialise
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Encoder, Stack
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.mixers.linformer import Linformer, LinformerPart, Projection

DIM, LENGTH, RANK = 12, 10, 4
Share = Literal["none", "heads", "key_value", "layers"]
SHARES: list[Share] = ["none", "heads", "key_value", "layers"]
every_share = pytest.mark.parametrize("share", SHARES)
pytestmark = pytest.mark.row("XF-07")
FIXED = pytest.mark.row("XF-07", clause="the length is fixed: a longer T is refused, a shorter one padded")


def built(share: Share = "none", rank: int = RANK, max_len: int = LENGTH) -> tuple[LinformerPart, Projection]:
    part = Linformer(heads=3, rank=rank, share=share).build(Site(dim=DIM, causal=False, max_len=max_len))
    for module in (part, part.borrowed.module):
        initialise(module, NormalInit(deviation=0.4), seed=0)
    return part, part.borrowed.module


@pytest.mark.row("XF-07", clause="E = F = I with k = T is exactly full attention")
@every_share
def test_without_compression_it_is_full_attention(share: Share) -> None:
    part, projection = built(share, rank=LENGTH)
    full = Attention(heads=3).build(Site(dim=DIM, causal=False))
    with torch.no_grad():
        projection.weight.copy_(torch.eye(LENGTH).repeat(projection.weight.shape[0] // LENGTH, 1))
        full.qkv.load_state_dict(part.qkv.state_dict())
        full.out.load_state_dict(part.out.state_dict())
    x = torch.randn(2, LENGTH, DIM)
    torch.testing.assert_close(part(x, Frame()).y, full(x, Frame()).y, atol=1e-6, rtol=1e-5)


@pytest.mark.row(
    "XF-07",
    clause=(
        "softmax(Q (E K)^T / sqrt(d)) (F V), with E and F of size k x T",
        "E and F are shared not at all, by heads, by key-value or by layers",
    ),
)
@every_share
def test_it_is_its_equation(share: Share) -> None:
    part, projection = built(share)
    x = torch.randn(2, 7, DIM)
    q, k, v = (y.unflatten(-1, (3, 4)) for y in part.qkv(x).chunk(3, dim=-1))
    tables = projection.weight.unflatten(0, (projection.kinds, -1, RANK))  # [kinds heads r max_len]
    e, f = (tables[i].expand(3, -1, -1)[..., :7] for i in (0, -1))
    heads = [(q[:, :, h] @ (e[h] @ k[:, :, h]).mT / 2.0).softmax(-1) @ (f[h] @ v[:, :, h]) for h in range(3)]
    expected = part.out(torch.cat(heads, dim=-1))
    torch.testing.assert_close(part(x, Frame()).y, expected, atol=1e-6, rtol=1e-5)


@FIXED
@every_share
def test_padding_on_either_side_changes_nothing(share: Share) -> None:
    part, _ = built(share)
    x, lengths = torch.randn(3, 8, DIM), [3, 8, 5]
    alone = [part(x[i : i + 1, :n], Frame()).y[0] for i, n in enumerate(lengths)]
    valid = torch.arange(8) < torch.tensor(lengths)[:, None]
    right = part(x, Frame(valid=valid)).y
    shifts = [8 - n for n in lengths]
    moved, there = (
        torch.stack([torch.roll(rows, shift, 0) for rows, shift in zip(y, shifts, strict=True)]) for y in (x, valid)
    )
    positions = (torch.arange(8) - torch.tensor(shifts)[:, None]).clamp(min=0)
    left = part(moved, Frame(valid=there, positions=positions)).y
    for i, n in enumerate(lengths):
        torch.testing.assert_close(right[i, :n], alone[i], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(left[i, 8 - n :], alone[i], atol=1e-6, rtol=1e-5)


def test_an_invalid_token_gives_nothing_and_gets_no_gradient_from_others() -> None:
    part, _ = built()
    x = torch.randn(1, 6, DIM, requires_grad=True)
    valid = torch.tensor([[True] * 5 + [False]])
    part(x, Frame(valid=valid)).y[:, :5].sum().backward()
    assert x.grad is not None
    assert x.grad[0, 5].abs().max() == 0.0 and x.grad[0, :5].abs().min() > 0.0


@pytest.mark.row(
    "XF-07",
    clause=(
        "softmax(Q (E K)^T / sqrt(d)) (F V), with E and F of size k x T",
        "E and F are shared not at all, by heads, by key-value or by layers",
        "E and F add 2 k T parameters per unshared head",
    ),
)
@pytest.mark.parametrize(("share", "tables"), [("none", 6), ("heads", 2), ("key_value", 1)])
def test_the_projections_have_rank_times_length_weights_each(share: Share, tables: int) -> None:
    part, _ = built(share)
    assert sum(p.numel() for p in part.parameters()) == 4 * DIM**2 + tables * RANK * LENGTH


@pytest.mark.row("XF-07", clause="E and F are shared not at all, by heads, by key-value or by layers")
def test_layers_that_share_have_one_projection_in_the_whole_stack() -> None:
    block = Block(branches=(Branch(part=Linformer(heads=3, rank=RANK, share="layers")),))
    model = Encoder(vocab=5, dim=DIM, max_len=LENGTH, stack=Stack(blocks={"layer": block}, depth=3)).build()
    found = [module for module in model.modules() if isinstance(module, Projection)]
    assert [projection.weight.shape for projection in found] == [(RANK, LENGTH)]
    model(torch.randint(0, 5, (2, 7)), Frame()).y.sum().backward()
    assert found[0].weight.grad is not None and found[0].weight.grad[:, :7].abs().min() > 0.0


@pytest.mark.row("XF-07", clause="FLOPs grow with T at slope 1.0 for fixed k")
@every_share
def test_flops_equal_the_counter_and_grow_with_the_length(share: Share) -> None:
    part, _ = built(share)

    def counted(length: int) -> tuple[int, int]:
        x = torch.randn(2, length, DIM, requires_grad=True)
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            y = part(x, Frame()).y
            forward = counter.get_total_flops()
            y.sum().backward()
        return forward, counter.get_total_flops() - forward

    linear = 2 * 2 * 8 * 4 * DIM**2
    forward, backward = part.core_flops(Call(batch=2, length=8))
    assert counted(8) == (linear + forward, 2 * linear + backward)
    assert part.core_flops(Call(batch=2, length=4000)) == (500 * forward, 500 * backward)


def test_the_pattern_is_over_the_slots() -> None:
    part, _ = built()
    x = torch.randn(2, 7, DIM)
    with capture(part) as seen:
        watched = part(x, Frame()).y
    torch.testing.assert_close(watched, part(x, Frame()).y, atol=1e-6, rtol=1e-5)
    assert seen["pattern"][0].shape == (2, 3, 7, RANK)
    torch.testing.assert_close(seen["pattern"][0].sum(-1), torch.ones(2, 3, 7))


def test_every_output_sees_every_input() -> None:
    part, _ = built()
    felt: Tensor = torch.autograd.functional.jacobian(lambda x: part(x, Frame()).y.sum(-1)[0], torch.randn(1, 6, DIM))
    assert (felt.abs().sum((1, 3)) > 0).all()


@pytest.mark.row("XF-07", clause="there is no causal use: a causal mask is refused")
@pytest.mark.parametrize(
    ("site", "says"),
    [
        (Site(dim=DIM, causal=True), "encoder"),
        (Site(dim=DIM, causal=False, source="memory"), "cross"),
        (Site(dim=15, causal=False), "heads=4 must divide dim=15. Use 3 or 5"),
    ],
)
def test_it_refuses_where_it_cannot_stand(site: Site, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        Linformer(heads=4).place(site)


@FIXED
def test_a_longer_sequence_is_refused() -> None:
    with pytest.raises(SpecError, match="11 tokens do not fit linformer's 10 positions"):
        built()[0](torch.randn(1, 11, DIM), Frame())
