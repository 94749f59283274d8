"""The first valid token, on whichever side the padding is: BERT's [CLS]."""

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Frame, Pool, PoolSpec, Site
from anyformer.ops.padding import take


@dataclass(frozen=True, kw_only=True)
class First(PoolSpec, kind="first"):
    """The first valid token: BERT's [CLS]."""

    def build(self, site: Site) -> "FirstModule":
        return FirstModule()


class FirstModule(Pool):
    def forward(self, h: Tensor, frame: Frame) -> Tensor:
        if frame.valid is None:
            return h[:, 0]
        end = h.shape[1] - 1
        places = torch.arange(end + 1, device=h.device)
        at = torch.where(frame.valid, places, end).amin(1, keepdim=True)  # [b 1]
        return take(h, at)[:, 0]
