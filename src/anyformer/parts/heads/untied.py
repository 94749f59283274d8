"""Words from hidden states with a matrix of its own: logits = h W^T."""

from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Borrowed, Embedding, Frame, Head, HeadSpec, Linear, LogitProduct, Site
from anyformer.ops.loss import cross_entropy


@dataclass(frozen=True, kw_only=True)
class Untied(HeadSpec, kind="untied"):
    """Words from hidden states, with a matrix of its own."""

    scores_words = True
    own_vectors = True

    bias: bool = False
    """Adds a learned bias to every word's score."""

    def build(self, site: Site, embedding: Borrowed[Embedding], vocab: int) -> "UntiedHead":
        return UntiedHead(self, site.dim, vocab)


class UntiedHead(Head):
    def __init__(self, spec: Untied, dim: int, vocab: int):
        super().__init__()
        self.words = Linear(dim, vocab, role="head", bias=spec.bias)

    def forward(self, h: Tensor, frame: Frame) -> Tensor:
        return self.words(h)

    def word_vectors(self) -> Tensor:
        return self.words.weight

    def loss(
        self, h: Tensor, frame: Frame, targets: Tensor, weight: Tensor, smoothing: float = 0.0, z: float = 0.0
    ) -> Tensor:
        return cross_entropy(self.product(h), targets, weight, smoothing=smoothing, z=z)

    def product(self, h: Tensor) -> LogitProduct:
        return LogitProduct(h, self.words.weight, self.words.bias)
