"""Cutting a sequence into chunks of equal length."""

import torch.nn.functional as F
from torch import Tensor


def cut(x: Tensor, chunk: int, *, pad_front: bool = False) -> Tensor:
    """[b t ...] -> [b n chunk ...], padded with zeros at the end, or at the front for a scan from the end."""
    pad = -x.shape[1] % chunk
    sides = (pad, 0) if pad_front else (0, pad)
    padded = F.pad(x, (0, 0) * (x.dim() - 2) + sides) if pad else x
    chunks: Tensor = padded.unflatten(1, (-1, chunk))
    return chunks
