"""The mean of the valid tokens: p = (1/n) sum_i h_i."""

from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Frame, Pool, PoolSpec, Site


@dataclass(frozen=True, kw_only=True)
class Mean(PoolSpec, kind="mean"):
    """The mean of all valid tokens."""

    def build(self, site: Site) -> "MeanModule":
        return MeanModule()


class MeanModule(Pool):
    def forward(self, h: Tensor, frame: Frame) -> Tensor:
        if frame.valid is None:
            return h.mean(1)
        live = frame.valid[..., None]
        return h.masked_fill(~live, 0.0).sum(1) / live.sum(1).clamp(min=1)  # an empty row gives zeros, not NaN
