"""BERT's words for masked places: one more layer, then the embedding's own table.

logits = LayerNorm(phi(W h + b)) E^T + c          (arXiv 1810.04805; its code)
W comes down to the width of the table, which is narrower than the stream where the embedding is factorized (ALBERT).
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Borrowed, Call, Embedding, Frame, Head, HeadSpec, Linear, LogitProduct, Positive, Site, param
from anyformer.ops.activations import ACTIVATION_FUNCTIONS, Activation
from anyformer.ops.loss import cross_entropy, loss_in_chunks, tokens_with_weight


@dataclass(frozen=True, kw_only=True)
class MaskedWordsHead(HeadSpec, kind="masked_words"):
    """BERT's words for masked places: one more layer, then the embedding's own table."""

    scores_words = True

    activation: Activation = "gelu"
    """Activation of the layer before the table."""
    eps: Positive = 1e-12
    """Keeps the layer norm's division finite."""

    def build(self, site: Site, embedding: Borrowed[Embedding], vocab: int) -> "MaskedWordsHeadModule":
        return MaskedWordsHeadModule(self, site.dim, embedding, vocab)


class MaskedWordsHeadModule(Head):
    def __init__(self, spec: MaskedWordsHead, dim: int, embedding: Borrowed[Embedding], vocab: int):
        super().__init__()
        self.embedding = embedding
        self.activation, self.eps, width = ACTIVATION_FUNCTIONS[spec.activation], spec.eps, embedding.module.width
        self.layer = Linear(dim, width, role="in", bias=True)
        self.gain = param((width,), "gain")
        self.shift = param((width,), "bias")
        self.bias = param((vocab,), "bias")

    def forward(self, h: Tensor, frame: Frame) -> Tensor:
        return self.embedding.module.table_scores(self._lower(h)) + self.bias

    def loss(
        self, h: Tensor, frame: Frame, targets: Tensor, weight: Tensor, smoothing: float = 0.0, z: float = 0.0
    ) -> Tensor:
        if self.embedding.module.table() is None:
            return loss_in_chunks(super().loss, len(self.bias), h, frame, targets, weight, smoothing, z)
        h, targets, weight = tokens_with_weight(h, targets, weight)  # first, because most tokens are not masked
        product = self.product(h)
        assert product is not None
        return cross_entropy(product, targets, weight, smoothing=smoothing, z=z)

    def product(self, h: Tensor) -> LogitProduct | None:
        table = self.embedding.module.table()
        return None if table is None else LogitProduct(self._lower(h), table, self.bias)

    def _lower(self, h: Tensor) -> Tensor:
        h = self.activation(self.layer(h))
        return F.layer_norm(h, h.shape[-1:], self.gain, self.shift, self.eps)

    def core_flops(self, call: Call) -> tuple[int, int]:
        forward = self.embedding.module.table_flops(call.batch * call.length)
        return forward, 2 * forward
