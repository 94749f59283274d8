"""Sequences cut into chunks of one length."""

import torch.nn.functional as F
from torch import Tensor


def cut(x: Tensor, size: int, pad_front: bool = False) -> Tensor:
    """[b t *d] -> [b n size *d], padded with zeros after the last token, or before the first, to a multiple of size."""
    pad = -x.shape[1] % size
    sides = (pad, 0) if pad_front else (0, pad)
    padded = F.pad(x, (0, 0) * (x.dim() - 2) + sides) if pad else x
    chunks: Tensor = padded.unflatten(1, (-1, size))
    return chunks
