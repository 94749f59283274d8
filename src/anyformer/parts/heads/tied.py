"""Words from hidden states with the embedding's own table: logits = h E^T, or h E^T + c          (arXiv 1608.05859)"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from anyformer.core import Borrowed, Call, Embedding, Frame, Head, HeadSpec, LogitProduct, Site, param
from anyformer.ops.loss import cross_entropy, loss_in_chunks

_WIDTH = 256
"""Width at which the scale "mup" is 1, as in the initialisation of that name."""


@dataclass(frozen=True, kw_only=True)
class Tied(HeadSpec, kind="tied"):
    """Words from hidden states, with the embedding's own table."""

    tied = True
    scores_words = True

    scale: Literal["one", "rsqrt_dim", "mup"] = "one"
    """Factor on the hidden states: 1, 1 / sqrt(dim) as in T5, or 256 / dim for learning rates that transfer over
    widths."""
    bias: bool = False
    """Adds a learned bias to every word's score."""

    @classmethod
    def examples(cls) -> "tuple[Tied, ...]":
        return cls(), cls(bias=True)

    def build(self, site: Site, embedding: Borrowed[Embedding], vocab: int) -> "TiedHead":
        return TiedHead(self, site.dim, embedding, vocab)


class TiedHead(Head):
    def __init__(self, spec: Tied, dim: int, embedding: Borrowed[Embedding], vocab: int):
        super().__init__()
        self.embedding = embedding  # a loan: a tied parameter would not survive the meta build, a tied module does
        self.vocab, self.bias = vocab, param((vocab,), "bias") if spec.bias else None
        self.scale = {"one": 1.0, "rsqrt_dim": dim**-0.5, "mup": _WIDTH / dim}[spec.scale]

    def forward(self, h: Tensor, frame: Frame) -> Tensor:
        scores = self.embedding.module.scores(h if self.scale == 1.0 else h * self.scale)
        return scores if self.bias is None else scores + self.bias

    def loss(
        self, h: Tensor, frame: Frame, targets: Tensor, weight: Tensor, smoothing: float = 0.0, z: float = 0.0
    ) -> Tensor:
        product = self.product(h)
        if product is None:
            return loss_in_chunks(super().loss, self.vocab, h, frame, targets, weight, smoothing, z)
        return cross_entropy(product, targets, weight, smoothing=smoothing, z=z)

    def product(self, h: Tensor) -> LogitProduct | None:
        words = self.embedding.module
        table = words.table()
        if table is None:
            return None
        return LogitProduct(words.lower(h if self.scale == 1.0 else h * self.scale), table, self.bias)

    def core_flops(self, call: Call) -> tuple[int, int]:
        forward = self.embedding.module.score_flops(call.batch * call.length)
        return forward, 2 * forward
