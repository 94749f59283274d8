"""Where the documents of packed rows begin: found before a batch goes to a device that one would have to wait for."""

from dataclasses import replace

import torch
from torch import Tensor

from anyformer.core import DocumentBounds, Frame
from anyformer.data.batching.batch import Batch

_FEWEST = 64
"""Bounds are filled up to a power of two, at least so many: few sizes, few graphs."""


def bounded(batch: Batch) -> Batch:
    """The batch, its source, and what a mixture made of it, with the bounds of their documents in the frames."""
    parts = {name: bounded(part) for name, part in batch.parts.items()}
    frame, source = _bounded(batch.frame), None if batch.source is None else bounded(batch.source)
    if source is not None:
        frame, source = _as_long(frame, source.frame), replace(source, frame=_as_long(source.frame, frame))
    return replace(batch, frame=frame, source=source, parts=parts)


def _bounded(frame: Frame) -> Frame:
    """Not where places inside a document are left out: bounds cannot say that."""
    segments, valid = frame.segments, frame.valid
    if segments is None or frame.layout is not None or not (valid is None or valid.equal(segments >= 0)):
        return frame
    return replace(frame, layout=DocumentBounds(bounds_of(segments), segments.shape[1]))


def _as_long(frame: Frame, other: Frame) -> Frame:
    """With as many bounds as the other side of a pair: alone, the two would grow past a power of two at other times."""
    mine, theirs = frame.document_bounds, other.document_bounds
    if mine is None or theirs is None:
        return frame
    bounds, wanted = mine.bounds, len(theirs.bounds)
    more = bounds[-1:].expand(max(0, wanted - len(bounds)))
    return replace(frame, layout=mine._replace(bounds=torch.cat((bounds, more))))


def bounds_of(segments: Tensor) -> Tensor:
    """Of all rows, laid end to end."""
    begins = torch.ones_like(segments, dtype=torch.bool)
    begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
    first = begins.flatten().nonzero()[:, 0]
    size = max(_FEWEST, 1 << len(first).bit_length())
    return torch.cat((first, first.new_full((size - len(first),), segments.numel()))).int()
