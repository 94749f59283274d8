"""Words from hidden states with the embedding's own table: logits = h E^T          (arXiv 1608.05859)"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from anyformer.core import Borrowed, Call, Embedding, Frame, Head, HeadSpec, Site
from anyformer.ops.loss import cross_entropy


@dataclass(frozen=True, kw_only=True)
class Tied(HeadSpec, kind="tied"):
    """Words from hidden states, with the embedding's own table."""

    tied = True
    scores_words = True

    scale: Literal["one", "rsqrt_dim"] = "one"
    """Multiplies the hidden states: by nothing, or by 1 / sqrt(dim) as T5 does."""

    def build(self, site: Site, embedding: Borrowed[Embedding], vocab: int) -> "TiedHead":
        return TiedHead(self, site.dim, embedding)


class TiedHead(Head):
    def __init__(self, spec: Tied, dim: int, embedding: Borrowed[Embedding]):
        super().__init__()
        self.embedding = embedding  # a loan: a tied parameter would not survive the meta build, a tied module does
        self.scale = dim**-0.5 if spec.scale == "rsqrt_dim" else 1.0

    def forward(self, h: Tensor, frame: Frame) -> Tensor:
        return self.embedding.module.scores(h if self.scale == 1.0 else h * self.scale)

    def loss(
        self, h: Tensor, frame: Frame, targets: Tensor, weight: Tensor, smoothing: float = 0.0, z: float = 0.0
    ) -> Tensor:
        words = self.embedding.module
        table = words.table()
        if table is None:
            return super().loss(h, frame, targets, weight, smoothing, z)
        x = words.lower(h if self.scale == 1.0 else h * self.scale)
        return cross_entropy(x, table, targets, weight, smoothing=smoothing, z=z)

    def core_flops(self, call: Call) -> tuple[int, int]:
        forward = self.embedding.module.score_flops(call.batch * call.length)
        return forward, 2 * forward
