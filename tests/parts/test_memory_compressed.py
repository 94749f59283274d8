"""Memory-compressed attention: against a loop over queries and blocks, torch's convolution and full attention."""

import pytest
import torch
import torch.nn.functional as F
from tests.conformance.subjects import all_pairs_count
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from anyformer.core import Frame, Part, Site, capture, initialise, nbytes
from anyformer.core.module import Call
from anyformer.errors import SpecError
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.mixers.memory_compressed import MemoryCompressed, MemoryCompressedPart

DIM, HEADS, CHANNELS = 12, 3, 4
every_stride = pytest.mark.parametrize("stride", [1, 2, 3, 5])


def built(stride: int = 3) -> MemoryCompressedPart:
    part = MemoryCompressed(heads=HEADS, stride=stride).build(Site(dim=DIM))
    initialise(part, NormalInit(deviation=0.4), seed=0)
    return part


def tokens(length: int = 13, seed: int = 1) -> Tensor:
    return torch.randn(2, length, DIM, generator=torch.Generator().manual_seed(seed))


def slow_keys(part: MemoryCompressedPart, x: Tensor, compress: Tensor) -> list[tuple[int, Tensor]]:
    """Position at which each compressed key (or value) ends, and the key [d], for one row of keys [t d]."""
    stride = part.stride
    keys = [(0, x[0])] if stride > 1 else []
    for end in range(stride - 1, len(x), stride):
        kernel = compress.view(DIM, stride, DIM).unbind(1)
        block = x[end - stride + 1 : end + 1]
        keys.append((end, sum((matrix @ y for matrix, y in zip(kernel, block, strict=True)), torch.zeros(DIM))))
    return keys


def slow_attention(part: MemoryCompressedPart, x: Tensor) -> Tensor:
    """The part for one row of tokens [t d]: a loop over queries, heads and the keys that a query sees."""
    q, k, v = (x @ weight.T for weight in part.qkv.weight.split(DIM))
    keys, values = slow_keys(part, k, part.compress_k.weight), slow_keys(part, v, part.compress_v.weight)
    rows = []
    for i in range(len(x)):
        heads = []
        for h in range(HEADS):
            head = slice(h * CHANNELS, (h + 1) * CHANNELS)
            scores = torch.stack([q[i, head] @ key[head] / CHANNELS**0.5 for end, key in keys if end <= i])
            visible = torch.stack([value[head] for end, value in values if end <= i])
            heads.append(scores.softmax(0) @ visible)
        rows.append(part.out.weight @ torch.cat(heads))
    return torch.stack(rows)


@pytest.mark.row("SUM-08", clause="keys and values by conv of kernel 3, stride 3; queries uncompressed")
@pytest.mark.row(
    "SUM-04",
    clause=(
        "compressed layers: keys and values by conv, kernel 3, stride 3",
        "queries stay uncompressed and attention stays causal",
        "the causal mask works at the granularity of compression blocks",
    ),
)
@every_stride
def test_attention_to_blocks_is_the_slow_loop(stride: int) -> None:
    part, x = built(stride), tokens().requires_grad_()
    y, expected = part(x, Frame()).y, torch.stack([slow_attention(part, row) for row in x])
    torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-5)
    wanted, inputs = torch.randn(y.shape, generator=torch.Generator().manual_seed(2)), (x, *part.parameters())
    mine, theirs = (torch.autograd.grad((out * wanted).sum(), inputs) for out in (y, expected))
    for gradient, slow in zip(mine, theirs, strict=True):
        assert slow.abs().max() > 1e-4
        torch.testing.assert_close(gradient, slow, atol=1e-5, rtol=1e-4)


@pytest.mark.row("SUM-08", clause="keys and values by conv of kernel 3, stride 3; queries uncompressed")
def test_the_default_compresses_with_torchs_convolution_of_kernel_and_stride_three() -> None:
    part, x = MemoryCompressed(heads=HEADS).build(Site(dim=DIM)), tokens(14)
    initialise(part, NormalInit(deviation=0.4), seed=0)
    q, k, v = part.qkv(x).chunk(3, dim=-1)
    compressed = [
        torch.cat((y[:, :1], F.conv1d(y.mT, w.weight.unflatten(1, (3, DIM)).mT, stride=3).mT), dim=1)
        for y, w in ((k, part.compress_k), (v, part.compress_v))
    ]
    assert compressed[0].shape[1] == 1 + 14 // 3
    ends = torch.tensor([0, 2, 5, 8, 11])
    mask = ends <= torch.arange(14)[:, None]
    q, k, v = (y.unflatten(-1, (HEADS, CHANNELS)).transpose(1, 2) for y in (q, *compressed))
    expected = part.out(F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))
    torch.testing.assert_close(part(x, Frame()).y, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.row("SUM-08", clause="causal: no compressed key that includes a future token is attended")
@pytest.mark.row("SUM-04", clause="no compressed key with future tokens is seen: zero leak by gradient")
@every_stride
def test_a_token_reaches_the_queries_from_the_end_of_its_block_on(stride: int) -> None:
    part, x = built(stride), tokens()[:1]
    with torch.no_grad():
        part.qkv.weight[:DIM] = 0  # without queries a token reaches others through keys and values alone
    jacobian = torch.autograd.functional.jacobian(lambda x: part(x, Frame()).y[0].sum(-1), x)[:, 0].abs().amax(-1)
    query, token = torch.arange(13)[:, None], torch.arange(13)
    reached = query >= token // stride * stride + stride - 1
    assert torch.equal(jacobian > 0, reached | (token == 0))
    assert not (reached & (token > query)).any()


@pytest.mark.row("SUM-04", clause="stride 1 with the identity kernel equals full attention")
def test_blocks_of_one_token_with_the_identity_are_attention() -> None:
    part, full = built(stride=1), Attention(heads=HEADS).build(Site(dim=DIM))
    with torch.no_grad():
        for compress in (part.compress_k, part.compress_v):
            compress.weight.copy_(torch.eye(DIM))
    full.load_state_dict({name: part.state_dict()[name] for name in full.state_dict()})
    for frame in (Frame(), Frame(valid=torch.arange(13) < torch.tensor([[13], [9]]))):
        torch.testing.assert_close(part(tokens(), frame).y, full(tokens(), frame).y, atol=1e-6, rtol=1e-5)


def score_flops(part: Part, length: int) -> int:
    """Measured FLOPs of scores and weighted values: all products but those with matrices of weights."""
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        part(torch.zeros(1, length, DIM), Frame())
    return sum(flops for op, flops in counter.get_flop_counts()["Global"].items() if "bmm" in str(op))


@pytest.mark.row("SUM-08", clause="score cost T * T/3: measured FLOPs are 1/3 of full attention")
@pytest.mark.row("SUM-04", clause="a compressed layer over T tokens has T/3 keys")
def test_scores_cost_a_third_of_full_attention() -> None:
    part, full = built(), Attention(heads=HEADS).build(Site(dim=DIM))
    initialise(full, NormalInit(), seed=0)
    measured, whole = score_flops(part, 600), score_flops(full, 600)
    assert measured / whole == (600 / 3 + 1) / 600 == pytest.approx(1 / 3, rel=0.01)
    call = Call(batch=1, length=600)
    assert part.core_flops(call)[0] / full.core_flops(call)[0] == pytest.approx(1 / 3, rel=0.01)
    with capture(part) as seen:
        part(torch.zeros(1, 600, DIM), Frame())
    assert seen["pattern"][0].shape == (1, HEADS, 600, 201)


@every_stride
@pytest.mark.parametrize(("past", "length"), [(0, 1), (0, 13), (7, 1), (8, 4), (50, 9)])
def test_the_card_counts_the_pairs_that_are_allowed(stride: int, past: int, length: int) -> None:
    part = built(stride)
    ends = [*([0] if stride > 1 else []), *range(stride - 1, past + length, stride)]
    pairs = sum(end <= query for query in range(past, past + length) for end in ends)
    call = Call(batch=2, length=length, past=past)
    assert part.core_flops(call) == (8 * DIM * pairs, 16 * DIM * pairs)
    with all_pairs_count():
        assert part.core_flops(call)[0] == 8 * DIM * length * len(ends)


@every_stride
@pytest.mark.parametrize("lengths", [[1] * 13, [4, 1, 6, 2], [2, 11], [13]], ids=str)
def test_a_state_continues_a_block_that_is_not_complete(stride: int, lengths: list[int]) -> None:
    part, x, pieces = built(stride), tokens(), []
    state = part.init_state(2, 13)
    with torch.no_grad():
        for chunk, positions in zip(x.split(lengths, 1), torch.arange(13).split(lengths), strict=True):
            y, state, *_ = part(chunk, Frame(positions=positions.expand(2, -1)), state)
            pieces.append(y)
        torch.testing.assert_close(torch.cat(pieces, 1), part(x, Frame()).y, atol=1e-6, rtol=1e-5)


def test_the_state_holds_a_third_of_the_keys_and_values() -> None:
    full = Attention(heads=HEADS).build(Site(dim=DIM)).init_state(2, 3000)
    assert nbytes(built().init_state(2, 3000)) == pytest.approx(nbytes(full) / 3, rel=0.01)


@every_stride
def test_padding_between_tokens_of_a_block_changes_nothing(stride: int) -> None:
    part, x, valid = built(stride), tokens(), torch.ones(2, 13, dtype=torch.bool)
    valid[:, [0, 4, 5, 9]] = False
    positions = valid.cumsum(1) - 1
    y, alone = part(x, Frame(valid=valid, positions=positions)).y, part(x[valid].view(2, 9, DIM), Frame()).y
    torch.testing.assert_close(y[valid].view_as(alone), alone, atol=1e-6, rtol=1e-5)
    state = part.init_state(2, 9)
    for chunk in torch.arange(13).split(4):
        frame = Frame(valid=valid[:, chunk], positions=positions[:, chunk])
        y[:, chunk], state, *_ = part(x[:, chunk], frame, state)
    torch.testing.assert_close(y[valid].view_as(alone), alone, atol=1e-6, rtol=1e-5)


def test_a_document_that_begins_in_another_row_has_blocks_at_the_same_positions() -> None:
    part, x = built(), tokens()
    cut = part(x[:, 4:], Frame(positions=torch.arange(4, 13).expand(2, -1))).y
    assert cut[:, :4].abs().max() == 0, "positions 4 to 7: the block from 3 to 5 is not complete, and so on"
    with capture(part) as seen:
        torch.testing.assert_close(part(x[:, 4:], Frame(positions=torch.arange(4, 13).expand(2, -1))).y, cut)
    assert torch.equal(seen["pattern"][0].gt(0).sum(-1)[0, 0], torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2]))


def test_a_state_takes_one_document_a_row_and_heads_must_divide_the_width() -> None:
    part = built()
    for frame in (Frame(), Frame(positions=torch.zeros(2, 1).long(), segments=torch.zeros(2, 1).long())):
        with pytest.raises(SpecError, match="a state takes one document a row"):
            part(tokens(1), frame, part.init_state(2, 4))
    with pytest.raises(SpecError, match="heads=5 must divide dim=12"):
        MemoryCompressed(heads=5).build(Site(dim=DIM))
