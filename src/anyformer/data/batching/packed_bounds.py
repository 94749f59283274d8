"""Bounds of the documents of packed rows, computed on the host before a batch goes to a device."""

from dataclasses import replace

import torch
from torch import Tensor

from anyformer.core import DocumentBounds, Frame
from anyformer.data.batching.batch import Batch

_FEWEST = 64
"""Smallest number of bounds; it is filled up to a power of two, so that few sizes need few graphs."""


def bounded(batch: Batch) -> Batch:
    """The batch, its source and its parts with the bounds of their documents in the frames."""
    parts = {name: bounded(part) for name, part in batch.parts.items()}
    frame, source = _bounded(batch.frame), None if batch.source is None else bounded(batch.source)
    if source is not None:
        frame, source = _as_long(frame, source.frame), replace(source, frame=_as_long(source.frame, frame))
    return replace(batch, frame=frame, source=source, parts=parts)


def _bounded(frame: Frame) -> Frame:
    """The frame with bounds, unless a document has invalid positions inside, which bounds cannot express."""
    segments, valid = frame.segments, frame.valid
    if segments is None or frame.layout is not None or not (valid is None or valid.equal(segments >= 0)):
        return frame
    return replace(frame, layout=DocumentBounds(bounds_of(segments), segments.shape[1]))


def _as_long(frame: Frame, other: Frame) -> Frame:
    """The frame with as many bounds as the other side of a pair: few combinations of sizes, few graphs."""
    mine, theirs = frame.document_bounds, other.document_bounds
    if mine is None or theirs is None:
        return frame
    more = mine.bounds[-1:].expand(max(0, len(theirs.bounds) - len(mine.bounds)))
    return replace(frame, layout=mine._replace(bounds=torch.cat((mine.bounds, more))))


def bounds_of(segments: Tensor) -> Tensor:
    """Bounds of the documents of all rows, laid end to end."""
    starts = torch.ones_like(segments, dtype=torch.bool)
    starts[:, 1:] = segments[:, 1:] != segments[:, :-1]
    first = starts.flatten().nonzero()[:, 0]
    size = max(_FEWEST, 1 << len(first).bit_length())
    return torch.cat((first, first.new_full((size - len(first),), segments.numel()))).int()
