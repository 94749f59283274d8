"""The largest value of each channel over the tokens that exist: p_c = max_i h_ic     (Kim 2014, arXiv 1408.5882)"""

from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Frame, Pool, PoolSpec, Site


@dataclass(frozen=True, kw_only=True)
class Max(PoolSpec, kind="max"):
    """The largest value of each channel over all valid tokens: whether a pattern occurs anywhere in the text."""

    def build(self, site: Site) -> "MaxModule":
        return MaxModule()


class MaxModule(Pool):
    def forward(self, h: Tensor, frame: Frame) -> Tensor:
        if frame.valid is None:
            return h.amax(1)
        live = frame.valid[..., None]
        largest = h.masked_fill(~live, float("-inf")).amax(1)
        return largest.masked_fill(~live.any(1), 0.0)  # an empty row gives zeros, not infinities
