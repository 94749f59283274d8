"""On a GPU: flash attention under a window against the written-out mask, in rows and in packed documents."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from anyformer.core import Causal, DocumentBounds, Frame, Full, Marks, MaskRule, ModelSpec, Segment, decode
from anyformer.data.batching.batch import bounds_of
from anyformer.ops.attention.attend import dispatch
from anyformer.ops.attention.call import AttentionCall, attend_loop, attention_weights, weighted_sum
from anyformer.ops.attention.packed import prefers_band, prefers_documents
from anyformer.parts.masks.block_local import BlockLocal
from anyformer.parts.masks.window import Window

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

SCALE = 0.2
NEAR = Window(size=50)
WINDOWS = [NEAR & Causal(), NEAR, Window(size=1) & Causal(), Window(size=1000) & Causal(), Window(size=1000)]
every_window = pytest.mark.parametrize("rule", WINDOWS, ids=str)
every_group = pytest.mark.parametrize("groups", [4, 2, 1])
Look = Callable[[Tensor, Tensor, Tensor], Tensor]


def inputs(length: int, groups: int, channels: int = 64, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    kind = {"device": "cuda", "dtype": dtype, "requires_grad": True}
    return [torch.randn(2, length, heads, channels, **kind) for heads in (4, groups, groups)]


def plain(rule: MaskRule, length: int) -> AttentionCall:
    marks = Marks(torch.arange(length, device="cuda")[None])
    return AttentionCall(rule, marks, marks, plain=True)


def packed(rule: MaskRule, length: int) -> AttentionCall:
    """Seven documents in one row, and one, a token and padding in the other."""
    place = torch.arange(length)
    segments = torch.stack((place * 7 // length, (place > 200).int() + (place > 201).int() - 3 * (place > 250).int()))
    marks = Marks(place.expand_as(segments).cuda(), segments.cuda())
    documents = DocumentBounds(bounds_of(segments).cuda(), length)
    return AttentionCall(rule & Segment(), marks, marks, documents=documents)


def same(look: Look, sight: AttentionCall, leaves: list[Tensor]) -> None:
    """Values and gradients, to what half precision can say."""
    y, exact = look(*leaves), [x.detach().float().requires_grad_() for x in leaves]
    expected = weighted_sum(attention_weights(exact[0], exact[1], sight, scale=SCALE), exact[2])
    slope = torch.randn_like(y)
    mine, theirs = torch.autograd.grad(y, leaves, slope), torch.autograd.grad(expected, exact, slope.float())
    for one, other in zip((y, *mine), (expected, *theirs), strict=True):
        largest = max(1.0, float(other.detach().abs().max()))  # a token that sees only itself teaches q and k nothing
        torch.testing.assert_close(one.float(), other, rtol=2e-2, atol=2e-2 * largest)


@every_window
@every_group
@pytest.mark.parametrize("length", [300, 384])
def test_rows_are_what_the_mask_gives(rule: MaskRule, groups: int, length: int) -> None:
    leaves, sight = inputs(length, groups), plain(rule, length)
    assert prefers_band(*leaves, sight)
    same(lambda q, k, v: dispatch(q, k, v, sight, scale=SCALE), sight, leaves)


@pytest.mark.parametrize("rule", [*WINDOWS, Causal(), Full()], ids=str)
@every_group
def test_documents_are_what_the_mask_gives(rule: MaskRule, groups: int) -> None:
    leaves, sight = inputs(300, groups), packed(rule, 300)
    assert prefers_documents(*leaves, sight)
    same(lambda q, k, v: dispatch(q, k, v, sight, scale=SCALE), sight, leaves)


@pytest.mark.parametrize("channels", [8, 40, 128, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_any_width_that_fits_is_right(channels: int, dtype: torch.dtype) -> None:
    leaves, sight = inputs(300, 2, channels, dtype), plain(NEAR & Causal(), 300)
    assert prefers_band(*leaves, sight)
    same(lambda q, k, v: dispatch(q, k, v, sight, scale=SCALE), sight, leaves)


@pytest.mark.parametrize("kind", [plain, packed])
def test_it_is_the_definition(kind: Callable[[MaskRule, int], AttentionCall]) -> None:
    (q, k, v), sight = inputs(40, 2, 16), kind(Window(size=7) & Causal(), 40)
    with torch.no_grad():
        fast = dispatch(q, k, v, sight, scale=SCALE).float()
        slow = attend_loop(q.float(), k.float(), v.float(), sight, scale=SCALE)
    torch.testing.assert_close(fast, slow, rtol=2e-2, atol=2e-2)


def test_heads_cut_from_one_projection_are_taken_as_they_lie() -> None:
    heads, sight = torch.randn(2, 300, 8, 64, device="cuda", dtype=torch.bfloat16), plain(NEAR & Causal(), 300)
    q, k, v = heads.split_with_sizes((4, 2, 2), dim=2)
    assert prefers_band(q, k, v, sight) and not q.is_contiguous()
    torch.testing.assert_close(
        dispatch(q, k, v, sight, scale=SCALE),
        dispatch(q.contiguous(), k.contiguous(), v.contiguous(), sight, scale=SCALE),
    )


def test_what_the_kernel_does_not_know_goes_another_way() -> None:
    half, wide = inputs(300, 4), inputs(300, 4, dtype=torch.float32)
    valid = torch.ones(2, 300, dtype=torch.bool, device="cuda")
    assert not prefers_band(*wide, plain(NEAR, 300)) and not prefers_band(*inputs(300, 4, 12), plain(NEAR, 300))
    assert not prefers_band(*half, plain(NEAR, 300)._replace(valid=valid))
    assert not any(prefers_band(*half, plain(rule, 300)) for rule in (Full(), Causal(), BlockLocal(size=64)))
    assert not any(prefers_band(*half, plain(rule, 300)) for rule in (Window(size=2, block=32), NEAR | BlockLocal()))
    assert not prefers_band(half[0], *wide[1:], plain(NEAR, 300))


@pytest.mark.compile
@pytest.mark.parametrize("kind", [plain, packed])
@pytest.mark.parametrize("groups", [4, 2])
def test_compiled_it_is_one_graph_with_the_same_gradients(
    kind: Callable[[MaskRule, int], AttentionCall], groups: int
) -> None:
    torch._dynamo.reset()

    def run(q: Tensor, k: Tensor, v: Tensor, sight: AttentionCall) -> Tensor:
        return 2 * dispatch(q / 2, k, v, sight, scale=2 * SCALE) / 2

    compiled = torch.compile(run, fullgraph=True)
    for length in (300, 411):  # from the second on dynamo would like the length to be a symbol
        sight = kind(NEAR & Causal(), length)
        same(lambda q, k, v, sight=sight: compiled(q, k, v, sight), sight, inputs(length, groups))


@pytest.mark.compile
def test_a_model_with_a_window_compiles_and_learns_in_rows_and_in_documents() -> None:
    part = {"kind": "attention", "heads": 4, "kv_heads": 2, "mask": {"kind": "window", "size": 50}}
    stack = {"depth": 2, "blocks": {"layer": {"branches": [{"part": part}, {"part": {"kind": "mlp"}}]}}}
    spec = decode(ModelSpec, {"kind": "decoder", "vocab": 29, "dim": 128, "stack": stack})
    model = spec.build(device="cuda").bfloat16()
    tokens, segments = torch.arange(300, device="cuda")[None] % 29, torch.arange(300)[None] // 100
    documents = DocumentBounds(bounds_of(segments).cuda(), 300)
    for frame in (Frame(), Frame(segments=segments.cuda(), layout=documents)):
        torch._dynamo.reset()
        expected = model(tokens, frame).y.float().detach()
        y = torch.compile(model, fullgraph=True)(tokens, frame).y
        torch.testing.assert_close(y.float(), expected, rtol=5e-2, atol=5e-2 * float(expected.abs().max()))
        y.float().square().mean().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        model.zero_grad()
