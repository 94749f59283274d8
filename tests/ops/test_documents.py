"""Packed documents, each by itself, against the mask that keeps them apart."""

import pytest
import torch
from torch import Tensor

from anyformer.core import Causal, DocumentBounds, Full, Marks, MaskRule, Segment
from anyformer.data.batching.batch import bounds_of
from anyformer.ops.attention.attend import dispatch
from anyformer.ops.attention.call import AttentionCall
from anyformer.ops.attention.packed import attend_documents, prefers_documents
from anyformer.parts.masks.block_local import BlockLocal
from anyformer.parts.masks.window import Window

SEGMENTS = torch.tensor([[0] * 50 + [1] * 30 + [-1] * 20, [0] * 100, [0, 1, 1] + [2] * 97]).repeat(16, 1)


def sights(rule: MaskRule, segments: Tensor = SEGMENTS) -> tuple[AttentionCall, AttentionCall]:
    """With the documents told, and without."""
    marks = Marks(torch.arange(segments.shape[1]).expand_as(segments), segments)
    documents = DocumentBounds(bounds_of(segments), segments.shape[1])
    return AttentionCall(rule, marks, marks, documents=documents), AttentionCall(rule, marks, marks)


@pytest.mark.parametrize("rule", [Causal(), Segment() & Causal(), Full()], ids=str)
@pytest.mark.parametrize("groups", [4, 2])
def test_documents_by_themselves_are_what_the_mask_gives(rule: MaskRule, groups: int) -> None:
    told, untold = sights(rule)
    q = torch.randn(48, 100, 4, 8, requires_grad=True)
    k, v = torch.randn(2, 48, 100, groups, 8, requires_grad=True)
    assert prefers_documents(q, k, v, told)
    apart, masked = attend_documents(q, k, v, told, 0.3), dispatch(q, k, v, untold, scale=0.3)
    torch.testing.assert_close(apart, masked)
    weight = torch.randn_like(apart)
    mine, theirs = (torch.autograd.grad((y * weight).sum(), (q, k, v)) for y in (apart, masked))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_other_rules_and_short_documents_take_another_way() -> None:
    q = torch.randn(48, 100, 4, 8)
    assert not prefers_documents(q, q, q, sights(Causal())[1])
    assert not prefers_documents(q, q, q, sights(BlockLocal(size=8))[0])
    short = torch.arange(100).expand(2, 100) // 5
    assert not prefers_documents(q[:2], q[:2], q[:2], sights(Causal(), short)[0])


def test_a_window_inside_documents_is_kept_on_a_cpu() -> None:
    told, untold = sights(Window(size=9) & Causal())
    q, k, v = torch.randn(3, 48, 100, 4, 8)
    torch.testing.assert_close(dispatch(q, k, v, told, scale=0.3), dispatch(q, k, v, untold, scale=0.3))


def test_bounds_are_where_segments_or_rows_begin() -> None:
    bounds = bounds_of(torch.tensor([[0, 0, 1], [0, -1, -1]]))
    assert bounds.dtype == torch.int32 and len(bounds) == 64
    assert bounds.unique_consecutive().tolist() == [0, 2, 3, 4, 6]
