"""Where the documents of packed rows begin: found before a batch goes to a device that one would have to wait for."""

from dataclasses import replace

import torch
from torch import Tensor

from anyformer.core import Documents, Frame
from anyformer.data.batch import Batch

_FEWEST = 64
"""Bounds are filled up to a power of two, at least so many: few sizes, few graphs."""


def bounded(batch: Batch) -> Batch:
    """The batch, and what a mixture made of it, with the bounds of its documents in the frame."""
    parts = {name: bounded(part) for name, part in batch.parts.items()}
    return replace(batch, frame=_bounded(batch.frame), parts=parts)


def _bounded(frame: Frame) -> Frame:
    """Not where places inside a document are left out: bounds cannot say that."""
    segments, valid = frame.segments, frame.valid
    if segments is None or frame.documents is not None or not (valid is None or valid.equal(segments >= 0)):
        return frame
    return replace(frame, documents=Documents(bounds_of(segments), segments.shape[1]))


def bounds_of(segments: Tensor) -> Tensor:
    """Of all rows, laid end to end."""
    begins = torch.ones_like(segments, dtype=torch.bool)
    begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
    first = begins.flatten().nonzero()[:, 0]
    size = max(_FEWEST, 1 << len(first).bit_length())
    return torch.cat((first, first.new_full((size - len(first),), segments.numel()))).int()
