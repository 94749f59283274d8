"""The last valid token, on whichever side the padding is: the only one that has seen all others in a decoder."""

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Frame, Pool, PoolSpec, Site
from anyformer.ops.padding import take


@dataclass(frozen=True, kw_only=True)
class Last(PoolSpec, kind="last"):
    """The last valid token."""

    def build(self, site: Site) -> "LastModule":
        return LastModule()


class LastModule(Pool):
    def forward(self, h: Tensor, frame: Frame) -> Tensor:
        if frame.valid is None:
            return h[:, -1]
        places = torch.arange(h.shape[1], device=h.device)
        at = torch.where(frame.valid, places, 0).amax(1, keepdim=True)  # [b 1]
        return take(h, at)[:, 0]
