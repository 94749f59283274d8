"""A vector for each token: x = E[token], optionally times sqrt(dim); a tied head scores with the same E.

Equal to one-hot rows times E          (arXiv 1706.03762, section 3.4)
"""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Embedding, EmbeddingSpec, Frame, Site, param
from anyformer.ops.decode_step import product


@dataclass(frozen=True, kw_only=True)
class Plain(EmbeddingSpec, kind="plain"):
    """A vector for each token."""

    scale: Literal["one", "sqrt_dim"] = "one"
    """Factor on the token vectors: 1, or sqrt(dim) as in the first Transformer."""

    def build(self, site: Site, vocab: int) -> "PlainModule":
        return PlainModule(self, vocab, site.dim)


class PlainModule(Embedding):
    def __init__(self, spec: Plain, vocab: int, dim: int):
        super().__init__()
        self.width = dim
        self.weight = param((vocab, dim), "embed")
        self.scale = dim**0.5 if spec.scale == "sqrt_dim" else 1.0

    def forward(self, tokens: Tensor, frame: Frame = Frame()) -> Tensor:
        x = F.embedding(tokens, self.weight)
        return x if self.scale == 1.0 else x * self.scale

    def table_scores(self, x: Tensor) -> Tensor:
        return product(x, self.weight)

    def table_flops(self, tokens: int) -> int:
        return 2 * tokens * self.weight.numel()

    def table(self) -> Tensor:
        return self.weight
