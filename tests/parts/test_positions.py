"""Schemes of position: each against its definition."""

import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from tests.parts.position_cases import (
    DIM,
    HEADS,
    LONGEST,
    attending,
    scheme,
    written,
)
from torch import Tensor

from anyformer.core import (
    Frame,
    Heads,
    Marks,
    Out,
    Part,
    PositionSpec,
)
from anyformer.parts.combine.with_positions import WithPositionsPart
from anyformer.parts.mixers.attention import AttentionPart
from anyformer.parts.positions.alibi import Alibi, head_slopes
from anyformer.parts.positions.bucketed_keys import BucketedKeys, BucketedKeysModule
from anyformer.parts.positions.concatenate import Concatenate, ConcatenateModule
from anyformer.parts.positions.in_heads import InHeads
from anyformer.parts.positions.learned import LearnedPosition
from anyformer.parts.positions.none import NoPosition
from anyformer.parts.positions.rope import Rope
from anyformer.parts.positions.shaw import Shaw, ShawModule
from anyformer.parts.positions.sinusoidal import Sinusoidal
from anyformer.parts.positions.xl import XL, XLModule


def projected(part: AttentionPart, x: Tensor) -> tuple[Tensor, ...]:
    return tuple(y.unflatten(-1, (-1, part.c))[0] for y in part.qkv(x).split(part.qkv.widths, dim=-1))  # [t h c]


@pytest.mark.row(
    "NAR-55", clause=("sinusoids equal sin(w_k t), cos(w_k t) with w_k = 10000^(-2k/d)", "sinusoids have no parameters")
)
@pytest.mark.row(
    "POS-02",
    clause=(
        "p_t has sin(w_k t) at entry 2k and cos(w_k t) at entry 2k + 1",
        "w_k = 10000^(-2k/d) for k = 0..d/2-1",
        "T2T layout as well: all sines in one half, all cosines in the other",
        "the table equals the closed form",
        "it has no parameters",
    ),
)
@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_sinusoids_have_their_closed_form_and_no_parameters(layout: str) -> None:
    module = scheme(Sinusoidal(layout=layout), Heads(1, 8))
    table = written(module, 50, 8)
    for t, k in product(range(50), range(4)):
        sine, cosine = (2 * k, 2 * k + 1) if layout == "interleaved" else (k, k + 4)
        angle = t * 10_000 ** (-2 * k / 8)
        assert table[t, sine].item() == pytest.approx(math.sin(angle), abs=1e-5)
        assert table[t, cosine].item() == pytest.approx(math.cos(angle), abs=1e-5)
    assert not list(module.parameters())


@pytest.mark.row("NAR-55", clause="sinusoids: PE(t+s) = R(s) PE(t) by block rotations to 1e-6")
@pytest.mark.row("POS-02", clause="PE(t+s) = R(s) PE(t) with a block rotation R, to 1e-6")
@pytest.mark.parametrize("shift", [1, 7, 30])
def test_a_shift_of_sinusoids_is_a_rotation(shift: int) -> None:
    table = written(scheme(Sinusoidal(), Heads(1, 8)), 40, 8)
    turn = torch.zeros(8, 8)
    for k in range(4):
        angle = shift * 10_000 ** (-2 * k / 8)
        turn[2 * k, 2 * k : 2 * k + 2] = torch.tensor([math.cos(angle), math.sin(angle)])
        turn[2 * k + 1, 2 * k : 2 * k + 2] = torch.tensor([-math.sin(angle), math.cos(angle)])
    torch.testing.assert_close(table[shift:], table[:-shift] @ turn.T, atol=1e-6, rtol=0)


@pytest.mark.row("NAR-55", clause="sinusoids: the product of p_t and p_(t+s) depends only on s")
@pytest.mark.row("POS-02", clause="the inner product of p_t and p_(t+s) depends only on s")
@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_products_of_sinusoids_depend_on_the_distance_only(layout: str) -> None:
    table = written(scheme(Sinusoidal(layout=layout), Heads(1, 8)), 40, 8)
    products = table @ table.T
    for distance in (0, 1, 13):
        along = products.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), atol=1e-4, rtol=0)


@pytest.mark.row(
    "POS-03", clause=("x_t + W_p[t] from a table of T_max rows", "T_max d parameters", "the table receives gradients")
)
@pytest.mark.row("POS-04", clause="add: x + p")
def test_learned_positions_are_rows_of_a_table_that_learns_where_it_was_read() -> None:
    module = scheme(LearnedPosition(), Heads(1, DIM))
    x = torch.randn(2, 5, DIM)
    y = module.embed(x, torch.arange(5)[None])
    y.square().sum().backward()
    (table,) = module.parameters()
    assert table.numel() == LONGEST * DIM
    torch.testing.assert_close(y, x + table[:5])
    assert (table.grad[:5] != 0).all() and (table.grad[5:] == 0).all()


@pytest.mark.row(
    "POS-04",
    clause=(
        "concatenate: [x; p] W",
        "concatenation with W = [W_x; W_p] equals x W_x + p W_p",
        "adding is a special case of concatenation (W_x = W_p)",
    ),
)
def test_adding_is_a_special_case_of_concatenating() -> None:
    module, x, where = scheme(Concatenate(position=Sinusoidal()), Heads(1, 8)), torch.randn(2, 5, 8), torch.arange(5)
    assert isinstance(module, ConcatenateModule)
    of_x, of_p = module.project.weight.chunk(2, dim=1)
    p = written(scheme(Sinusoidal(), Heads(1, 8)), 5, 8)
    torch.testing.assert_close(module.embed(x, where[None]), x @ of_x.T + p @ of_p.T)
    with torch.no_grad():
        module.project.weight.copy_(torch.eye(8).repeat(1, 2))
    torch.testing.assert_close(module.embed(x, where[None]), x + p)


@pytest.mark.row("POS-05", clause=("both modes can be selected", "the modes agree when W_q = W_k = W_v = I"))
def test_positions_in_heads_are_positions_on_tokens_when_nothing_is_projected() -> None:
    inside, outside = attending(InHeads(position=Sinusoidal())), attending(NoPosition())
    outside.load_state_dict(inside.state_dict())
    x, p = torch.randn(2, 7, DIM), written(scheme(Sinusoidal(), Heads(1, DIM)), 7, DIM)
    different = outside(x + p, Frame()).y - inside(x, Frame()).y
    for part in (inside, outside):
        part.qkv.weight.data.copy_(torch.eye(DIM).repeat(3, 1))
    torch.testing.assert_close(inside(x, Frame()).y, outside(x + p, Frame()).y)
    assert different.abs().max() > 1e-2


@pytest.mark.row("POS-05", clause="p_i is added to the projected q_i, k_i and v_i at the first layer")
def test_positions_in_heads_are_added_to_what_was_projected() -> None:
    part, x = attending(InHeads(position=Sinusoidal())), torch.randn(1, 7, DIM)
    p = written(scheme(Sinusoidal(), Heads(1, DIM)), 7, DIM).unflatten(-1, (HEADS, -1))
    q, k, v = (y + p for y in projected(part, x))
    y = torch.zeros(7, HEADS, part.c)
    for h, i in product(range(HEADS), range(7)):
        weights = torch.stack([part.scale * q[i, h] @ k[j, h] for j in range(7)]).softmax(0)
        y[i, h] = sum(weights[j] * v[j, h] for j in range(7))
    torch.testing.assert_close(part(x, Frame()).y[0], part.out(y.flatten(1)), atol=1e-5, rtol=1e-5)


@pytest.mark.row("POS-06")
def test_a_positioned_part_hands_on_state_and_losses() -> None:
    class Echo(Part):
        def forward(self, x: Tensor, frame: Frame, state: Tensor | None = None) -> Out:
            return Out(x, state, {"echo": x.sum()})

        def init_state(self, batch: int, max_len: int, memory: object = None) -> Tensor:
            return torch.full((batch, max_len), 7.0)

    part = WithPositionsPart(scheme(Sinusoidal(), Heads(1, 8)), Echo())
    out = part(torch.zeros(1, 3, 8), Frame(), part.init_state(2, 5))
    assert out.state.shape == (2, 5) and (out.state == 7.0).all()
    assert out.losses["echo"].item() == pytest.approx(written(part.position, 3, 8).sum().item())


@pytest.mark.row(
    "POS-07",
    clause=(
        "score q_i . (k_j + a^K[clip(j-i, -k, k)]) / sqrt(head width)",
        "out_i = sum_j alpha_ij (v_j + a^V[clip(j-i, -k, k)])",
        "2k + 1 vectors for the keys and 2k + 1 for the values",
        "equals a brute-force O(T^2 d) loop",
        "2 (2k + 1) d_k parameters",
    ),
)
@pytest.mark.row("NAR-55")
def test_shaw_is_its_definition_pair_by_pair() -> None:
    part, x = attending(Shaw(reach=2)), torch.randn(1, 7, DIM)
    a = part.position
    assert isinstance(a, ShawModule)
    q, k, v = projected(part, x)
    y = torch.zeros(7, HEADS, part.c)
    for h, i in product(range(HEADS), range(7)):
        rows = [max(-2, min(2, j - i)) + 2 for j in range(7)]
        weights = torch.stack([part.scale * q[i, h] @ (k[j, h] + a.key_table[rows[j]]) for j in range(7)]).softmax(0)
        y[i, h] = sum(weights[j] * (v[j, h] + a.value_table[rows[j]]) for j in range(7))
    torch.testing.assert_close(part(x, Frame()).y[0], part.out(y.flatten(1)), atol=1e-5, rtol=1e-5)
    assert sum(parameter.numel() for parameter in a.parameters()) == 2 * (2 * 2 + 1) * part.c


@pytest.mark.row(
    "NAR-55",
    clause=(
        "bucketed-key scores are q.a^K per head, without a value term",
        "relative keys equal a brute-force loop over all pairs",
    ),
)
@pytest.mark.row("POS-07", clause="released 'context' variant: bucketed q . a^K per head, no value term")
@pytest.mark.parametrize("kv_heads", [None, 1], ids=["plain", "grouped"])
def test_bucketed_keys_are_their_definition_pair_by_pair(kv_heads: int | None) -> None:
    part, x = attending(BucketedKeys(buckets=8, max_distance=5), kv_heads=kv_heads), torch.randn(1, 9, DIM)
    a, parameters = part.position, [*part.parameters()]
    assert isinstance(a, BucketedKeysModule) and not a.has_values
    q, k, v = projected(part, x)
    table, y = a.table.view(HEADS, 8, part.c), torch.zeros(9, HEADS, part.c)
    # 4 buckets for each side: offsets 0 and 1 alone, then 2 to 3 and 4 on (2 + log(n / 2) / log(5 / 2) * 2)
    one_side = [0, 1, 2, 2, 3, 3, 3, 3, 3]
    for h, i in product(range(HEADS), range(9)):
        rows = [one_side[abs(j - i)] + (4 if j > i else 0) for j in range(9)]
        g = h * k.shape[1] // HEADS
        weights = torch.stack([part.scale * q[i, h] @ (k[j, g] + table[h, rows[j]]) for j in range(9)]).softmax(0)
        y[i, h] = sum(weights[j] * v[j, g] for j in range(9))
    mine, loop = part(x, Frame()).y[0], part.out(y.flatten(1))
    torch.testing.assert_close(mine, loop, atol=1e-5, rtol=1e-5)
    pull = torch.randn_like(mine)
    for got, expected in zip(
        *(torch.autograd.grad((out * pull).sum(), parameters, retain_graph=True) for out in (mine, loop)), strict=True
    ):
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.row("POS-07")
def test_shaw_sums_many_weights_in_half_precision() -> None:
    module, where = scheme(Shaw(reach=2), Heads(1, 4)).bfloat16(), Marks(torch.arange(1024)[None])
    weights = torch.full((1, 1, 1024, 1024), 1 / 1024, dtype=torch.bfloat16)
    assert isinstance(module, ShawModule)
    far = module.values(weights, where, where)[0, 0, 0]  # for the first token almost every key is beyond reach
    torch.testing.assert_close(far, module.value_table[4], atol=0.02, rtol=0.02)


def sinusoid(distance: int, dim: int) -> Tensor:
    angle = distance * 10_000 ** (-torch.arange(0, dim, 2) / dim)
    return torch.cat([angle.sin(), angle.cos()])


@pytest.mark.row(
    "POS-09",
    clause=(
        "score [(q + u) . k_j + (q + v) . (W_r R_(i-j))] / sqrt(d_k)",
        "R is sinusoidal in [sin | cos] halves",
        "u and v are learned per head",
        "the rel-shift trick equals an explicit loop",
    ),
)
@pytest.mark.parametrize("kv_heads", [None, 1], ids=["plain", "grouped"])
def test_xl_is_its_definition_pair_by_pair(kv_heads: int | None) -> None:
    part, x = attending(XL(), kv_heads=kv_heads), torch.randn(1, 6, DIM)
    xl = part.position
    assert isinstance(xl, XLModule)
    q, k, v = projected(part, x)
    y = torch.zeros(6, HEADS, part.c)
    for h, i in product(range(HEADS), range(6)):
        g, u_v = h * k.shape[1] // HEADS, xl.leanings.module
        keys = [xl.project(sinusoid(i - j, DIM)).unflatten(-1, (HEADS, -1))[h] for j in range(6)]
        scores = [(q[i, h] + u_v.u[h]) @ k[j, g] + (q[i, h] + u_v.v[h]) @ keys[j] for j in range(6)]
        y[i, h] = (part.scale * torch.stack(scores)).softmax(0) @ v[:, g]
    torch.testing.assert_close(part(x, Frame()).y[0], part.out(y.flatten(1)), atol=1e-4, rtol=1e-4)


@pytest.mark.row("POS-09", clause="the rel-shift trick equals an explicit loop")
def test_xl_by_distance_is_the_relative_shift() -> None:
    module, t = scheme(XL(), Heads(HEADS, 4, 0.5), causal=True), 6
    q, where = torch.randn(1, t, HEADS, 4), Marks(torch.arange(t)[None])
    keys = module.project(torch.stack([sinusoid(n, DIM) for n in range(t - 1, -1, -1)])).unflatten(-1, (HEADS, 4))
    products = 0.5 * torch.einsum("thc,nhc->htn", q[0] + module.leanings.module.v, keys)  # distance t - 1 first
    shifted = F.pad(products, (1, 0)).reshape(HEADS, t + 1, t)[:, 1:]  # a zero in front, then read one row later
    dense = module.bias(q, torch.zeros_like(q), where, where).dense()[0]  # k = 0: u has nothing to say
    torch.testing.assert_close(dense.tril(), shifted.tril(), atol=1e-5, rtol=1e-5)


@pytest.mark.row("POS-09")
def test_xl_looks_ahead_in_a_causal_stack_where_a_prefix_is_read() -> None:
    causal, both = (scheme(XL(), Heads(HEADS, 4), causal=causal) for causal in (True, False))
    both.load_state_dict(causal.state_dict())
    q, k, where = torch.randn(1, 6, HEADS, 4), torch.randn(1, 6, HEADS, 4), Marks(torch.arange(6)[None])
    read = where._replace(prefix=torch.tensor([[4]]))
    torch.testing.assert_close(causal.bias(q, k, read, read).dense(), both.bias(q, k, where, where).dense())


def test_rotary_scores_depend_on_the_distance_only() -> None:
    module, q, k = scheme(Rope(), Heads(1, 8)), torch.randn(8), torch.randn(8)
    where = torch.arange(20)[None]
    turned_q, turned_k = (module.rotate(x.expand(1, 20, 1, 8), where)[0, :, 0] for x in (q, k))
    scores = turned_q @ turned_k.T
    for distance in (-7, 0, 5):
        along = scores.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), atol=1e-5, rtol=1e-5)
    assert (scores[0] - scores[0, 0]).abs().max() > 0.1


@pytest.mark.parametrize("position", [Rope(), Sinusoidal()], ids=["rope", "sinusoidal"])
def test_waves_keep_their_periods_in_half_precision(position: PositionSpec) -> None:
    module, where = scheme(position, Heads(1, 64)), torch.full((1, 1), 1999)
    x = torch.ones(1, 1, 1, 64)
    full = module.embed(module.rotate(x, where)[:, :, 0], where)
    half = module.bfloat16()
    rounded = half.embed(half.rotate(x.bfloat16(), where)[:, :, 0], where)
    torch.testing.assert_close(rounded.float(), full, atol=0.03, rtol=0)


@pytest.mark.parametrize("heads", [1, 3, 8, 12])
def test_alibi_is_minus_the_slope_times_the_distance(heads: int) -> None:
    module, q, where = scheme(Alibi(), Heads(heads, 4)), torch.zeros(1, 5, heads, 4), Marks(torch.arange(5)[None])
    dense = module.bias(q, q, where, where).dense()
    for h, i, j in product(range(heads), range(5), range(5)):
        assert dense[0, h, i, j].item() == pytest.approx(-head_slopes(heads)[h].item() * abs(i - j))
    assert not list(module.parameters())


def test_alibi_slopes_are_those_of_the_paper() -> None:
    slopes = {heads: head_slopes(heads).tolist() for heads in (3, 8, 12, 16)}
    assert slopes[8] == [2.0**-n for n in range(1, 9)]
    assert slopes[16] == pytest.approx([2.0 ** (-n / 2) for n in range(1, 17)])
    assert slopes[12] == pytest.approx(slopes[8] + slopes[16][0:8:2])
    assert slopes[3] == pytest.approx([2.0**-4, 2.0**-8, 2.0**-2])
