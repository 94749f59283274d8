"""Packed batches say where their documents begin, unless a place inside one is left out."""

from dataclasses import replace

import torch

from anyformer.core import Frame
from anyformer.data.batching.batch import Batch, bounded

SEGMENTS = torch.tensor([[0, 0, 1, -1], [0, 0, 0, 0]])
PACKED = Batch(tokens=torch.zeros(2, 4, dtype=torch.long), frame=Frame(segments=SEGMENTS, valid=SEGMENTS >= 0))


def test_packed_rows_have_bounds_and_lose_them_when_rows_are_taken() -> None:
    batch = bounded(PACKED)
    assert batch.frame.document_bounds is not None and batch.frame.document_bounds.longest == 4
    assert batch.frame.document_bounds.bounds[:5].tolist() == [0, 2, 3, 4, 8]
    assert batch.take(torch.tensor([1])).frame.document_bounds is None
    moved = batch.to("meta").frame.document_bounds
    assert moved is not None and moved.bounds.is_meta


def test_a_gap_inside_a_document_and_plain_rows_have_none() -> None:
    gap = torch.tensor([[True, False, True, False], [True] * 4])
    for frame in (replace(PACKED.frame, valid=gap), Frame(valid=gap), Frame()):
        assert bounded(replace(PACKED, frame=frame)).frame.document_bounds is None


def test_the_source_and_the_parts_of_a_mixture_have_their_own() -> None:
    batch = bounded(replace(PACKED, source=PACKED, parts={"task": PACKED}))
    assert batch.parts["task"].frame.document_bounds is not None and batch.source.frame.document_bounds is not None


def test_both_sides_of_a_pair_have_as_many() -> None:
    many = torch.arange(80)[None].expand(2, -1)
    source = Batch(tokens=torch.zeros_like(many), frame=Frame(segments=many))
    for pair in (replace(PACKED, source=source), replace(source, source=PACKED)):
        sides = bounded(pair), bounded(pair).source
        assert [len(side.frame.document_bounds.bounds) for side in sides] == [256, 256]
        assert all(int(side.frame.document_bounds.bounds[-1]) == side.tokens.numel() for side in sides)
