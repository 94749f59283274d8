"""On a GPU: the kernels of attention inside packed documents against the written-out mask; who gets them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.gpu.test_flash_band import NEAR, SCALE, WINDOWS, plain, same
from torch import Tensor

from anyformer.core import Causal, DocumentBounds, Full, Marks, MaskRule, Segment
from anyformer.core.masks import Band
from anyformer.data.batching.batch import bounds_of
from anyformer.ops.attention import packed as module
from anyformer.ops.attention.attend import dispatch
from anyformer.ops.attention.blocked import flash_band
from anyformer.ops.attention.call import AttentionCall
from anyformer.ops.attention.packed import attend_packed, attend_rows, fits_kernel, prefers_documents

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def segments(rows: int, length: int) -> Tensor:
    """Documents of 1 to 200 tokens, and padding behind the last one."""
    random = torch.Generator().manual_seed(length)
    found = torch.full((rows, length), -1)
    for row in found:
        start = 0
        for number in range(length):
            end = start + int(torch.randint(1, 200 if number % 3 else 5, (), generator=random))
            if end > length:
                break
            row[start:end], start = number, end
    return found


def packed(rule: MaskRule, rows: int, length: int, *, masked: bool = False) -> AttentionCall:
    where = segments(rows, length)
    marks = Marks(torch.arange(length, device="cuda").expand(rows, -1), where.cuda())
    valid = (where >= 0).cuda() if masked else None
    return AttentionCall(
        rule & Segment(), marks, marks, valid, documents=DocumentBounds(bounds_of(where).cuda(), length)
    )


def inputs(
    rows: int, length: int, groups: int, channels: int = 64, dtype: torch.dtype = torch.bfloat16
) -> list[Tensor]:
    kind: dict[str, Any] = {"device": "cuda", "dtype": dtype, "requires_grad": True}
    return [torch.randn(rows, length, heads, channels, **kind) for heads in (4, groups, groups)]


def look(sight: AttentionCall) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Through the kernels."""
    band, documents = sight.rule.band_in_document, sight.documents
    assert band is not None and documents is not None

    def through(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        flat = [x.flatten(0, 1) for x in (q, k, v)]
        return attend_packed(flat, k.shape[2], band, SCALE, documents).view_as(q)

    return through


def usual(sight: AttentionCall) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """As it is called outside of graphs."""
    return lambda q, k, v: dispatch(q, k, v, sight, scale=SCALE)


@pytest.mark.parametrize("rule", [*WINDOWS, Causal(), Full()], ids=str)
@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize(("rows", "length"), [(3, 512), (2, 301), (1, 130)])
def test_kernels_are_what_the_mask_gives(rule: MaskRule, groups: int, rows: int, length: int) -> None:
    leaves, sight = inputs(rows, length, groups), packed(rule, rows, length)
    assert prefers_documents(*leaves, sight) and fits_kernel(*leaves, SCALE)
    same(look(sight), sight, leaves)


@pytest.mark.parametrize("channels", [16, 32, 64])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_width_of_a_head_is_right(channels: int, dtype: torch.dtype) -> None:
    leaves, sight = inputs(2, 301, 2, channels, dtype), packed(Causal(), 2, 301)
    assert fits_kernel(*leaves, SCALE)
    same(look(sight), sight, leaves)


@pytest.mark.parametrize("channels", [8, 40, 128, 256])
def test_other_widths_go_to_flash_attention(channels: int) -> None:
    leaves, sight = inputs(2, 301, 2, channels), packed(NEAR & Causal(), 2, 301)
    assert prefers_documents(*leaves, sight) and not fits_kernel(*leaves, SCALE)
    same(usual(sight), sight, leaves)


def test_single_precision_and_other_scales_are_not_for_the_kernels() -> None:
    assert not fits_kernel(*inputs(1, 300, 4, dtype=torch.float32), SCALE)
    assert not fits_kernel(*inputs(1, 300, 4), -SCALE)


@pytest.mark.parametrize("masked", [False, True], ids=["told", "masked"])
@pytest.mark.parametrize("length", [40, 128])
def test_short_rows_are_cheaper_with_a_mask_and_padding_gets_zeros(length: int, masked: bool) -> None:
    leaves, sight = inputs(3, length, 2), packed(Full(), 3, length, masked=masked)
    assert not prefers_documents(*leaves, sight)
    same(usual(sight), sight, leaves)
    if sight.valid is not None:
        assert not sight.valid.all() and not usual(sight)(*leaves)[~sight.valid].any()


def test_heads_cut_from_one_projection_are_taken_as_they_lie() -> None:
    heads, sight = torch.randn(2, 300, 8, 64, device="cuda", dtype=torch.bfloat16), packed(Causal(), 2, 300)
    q, k, v = heads.split_with_sizes((4, 2, 2), dim=2)
    assert fits_kernel(q, k, v, SCALE) and not q.is_contiguous()
    assert look(sight)(q, k, v).equal(look(sight)(q.contiguous(), k.contiguous(), v.contiguous()))


@pytest.mark.parametrize("rule", [Causal(), NEAR & Causal(), NEAR], ids=str)
@pytest.mark.parametrize(("length", "groups"), [(256, 4), (301, 2), (1024, 4)])
def test_rows_are_documents_too(rule: MaskRule, length: int, groups: int) -> None:
    band = rule.band
    assert band is not None
    same(lambda q, k, v: attend_rows((q, k, v), groups, band, SCALE), plain(rule, length), inputs(2, length, groups))


def test_heads_in_one_piece_get_their_gradient_in_one() -> None:
    heads = torch.randn(2, 300, 8, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    parts, slope = heads.split_with_sizes((4, 2, 2), dim=2), torch.randn_like(heads[:, :, :4])
    both = [attend_rows(given, 2, Band(None, 0), SCALE) for given in ((heads,), parts)]
    whole, apart = (torch.autograd.grad(y, heads, slope)[0] for y in both)
    assert both[0].equal(both[1]) and whole.equal(apart)


def test_gradients_are_the_same_every_time_and_near_those_of_flash_attention() -> None:
    sight = packed(Causal(), 8, 512)
    assert sight.documents is not None
    leaves = [x.detach().flatten(0, 1).requires_grad_() for x in inputs(8, 512, 2)]
    slope = torch.randn_like(leaves[0])
    told = Band(None, 0), SCALE, sight.documents
    found = attend_packed(leaves, 2, *told), attend_packed(leaves, 2, *told), flash_band(*leaves, *told)
    runs = [torch.autograd.grad(y, leaves, slope) for y in found]
    for first, second, flash in zip(*runs, strict=True):
        assert first.equal(second)
        torch.testing.assert_close(first, flash, rtol=3e-2, atol=3e-2 * max(1.0, float(flash.abs().max())))


@pytest.mark.compile
@pytest.mark.parametrize("groups", [4, 2])
def test_compiled_it_is_one_graph_with_the_same_gradients(groups: int) -> None:
    torch._dynamo.reset()

    def run(heads: Tensor, sight: AttentionCall) -> Tensor:
        twice = 2 * heads
        q, k, v = twice.split_with_sizes((4, groups, groups), dim=2)
        inner = dispatch(q, k, v, sight, scale=SCALE, fused=twice)
        return dispatch(q / 2, k / 2, inner[:, :, :groups] / 2, sight, scale=SCALE)

    compiled = torch.compile(run, fullgraph=True)
    for length in (300, 411, 64):  # from the second on dynamo would like the length to be a symbol
        sight = packed(NEAR & Causal(), 2, length)
        heads = torch.randn(2, length, 4 + 2 * groups, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        y, expected = compiled(heads, sight), run(heads, sight)
        slope = torch.randn_like(y)
        pairs = (y, expected), [torch.autograd.grad(out, heads, slope)[0] for out in (y, expected)]
        for one, other in pairs:
            largest = max(1.0, float(other.detach().abs().max()))
            torch.testing.assert_close(one.float(), other.float(), rtol=3e-2, atol=3e-2 * largest)


def test_the_short_row_is_the_last_that_takes_a_mask() -> None:
    for length, packs in ((module._SHORT_ROW, False), (module._SHORT_ROW + 1, True)):
        assert prefers_documents(*inputs(1, length, 4), packed(Full(), 1, length)) == packs
