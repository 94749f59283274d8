"""Texts of all lengths, end to end, and some of them as padded rows on a device, copied asynchronously."""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from anyformer.core import Frame
from anyformer.inference.grouping import Integers


class Ragged(NamedTuple):
    """The tokens of all texts, end to end."""

    tokens: Integers
    lengths: Integers
    starts: Integers

    @classmethod
    def of(cls, texts: Sequence[Sequence[int]]) -> "Ragged":
        lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        tokens = np.fromiter(chain.from_iterable(texts), dtype=np.int64, count=int(lengths.sum()))
        return cls(tokens, lengths, lengths.cumsum() - lengths)

    def padded(self, group: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor, Frame]:
        """Some texts as rows padded with zeros, their lengths, and a frame that marks the tokens."""
        lengths = self.lengths[group]
        places = np.arange(lengths.max())
        inside = places < lengths[:, None]
        tokens = np.where(inside, self.tokens[np.where(inside, self.starts[group][:, None] + places, 0)], 0)
        valid = None if inside.all() else _moved(inside, device)
        return _moved(tokens, device), _moved(lengths, device), Frame(valid=valid)


def _moved(values: Integers | np.ndarray[tuple[int, ...], np.dtype[np.bool_]], device: torch.device) -> Tensor:
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
