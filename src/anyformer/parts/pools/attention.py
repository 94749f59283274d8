"""A weighted sum of the tokens, the weights learned: attention with one query that is the same for all sequences.

a = softmax(r),  r_i = v . h_i ;  p = sum_i a_i h_i
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Call, Frame, Linear, Pool, PoolSpec, Site, Tap


@dataclass(frozen=True, kw_only=True)
class AttentionPool(PoolSpec, kind="attention"):
    """A weighted sum of all valid tokens, with learned weights."""

    def build(self, site: Site) -> "AttentionPoolModule":
        return AttentionPoolModule(site.dim)


class AttentionPoolModule(Pool):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim
        self.query = Linear(dim, 1, role="query")
        self.pattern = Tap()

    def forward(self, h: Tensor, frame: Frame) -> Tensor:
        scores = self.query(h)[..., 0]  # [b t]
        if frame.valid is None:
            weights = scores.softmax(1)
        else:
            weights = scores.masked_fill(~frame.valid, torch.finfo(scores.dtype).min).softmax(1)
            weights = weights.masked_fill(~frame.valid, 0.0)  # an empty row gives zeros, not a mean of padding
        return torch.einsum("bt,btd->bd", self.pattern(weights), h)

    def core_flops(self, call: Call) -> tuple[int, int]:
        forward = 2 * call.batch * call.length * self.dim
        return forward, 2 * forward
