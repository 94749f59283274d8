"""A vector for each token through a narrow table: of low rank, and cheap where the vocabulary is large.

x = W E[token],  E [v w], W [d w], w < d          (ALBERT, arXiv 1909.11942, section 3.1)
A tied head goes back the same way: scores = (h W) E^T.
"""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Count, Embedding, EmbeddingSpec, Frame, Linear, Site, param
from anyformer.ops.decode_step import product


@dataclass(frozen=True, kw_only=True)
class Factorized(EmbeddingSpec, kind="factorized"):
    """A vector for each token from a narrow table, lifted to the width of the stream."""

    perspective = "efficiency"

    width: Count = 128
    """Width of the table; positions, types and the entry norm act at this width too."""
    bias: bool = False
    """Adds a learned bias when lifting; a tied head does not use it."""
    scale: Literal["one", "sqrt_dim"] = "one"
    """Factor on the token vectors: 1, or sqrt(dim)."""

    @classmethod
    def examples(cls) -> "tuple[Factorized, ...]":
        return (cls(width=8, bias=True, scale="sqrt_dim"),)

    def build(self, site: Site, vocab: int) -> "FactorizedModule":
        return FactorizedModule(self, vocab, site.dim)


class FactorizedModule(Embedding):
    def __init__(self, spec: Factorized, vocab: int, dim: int):
        super().__init__()
        self.width = spec.width
        self.weight = param((vocab, spec.width), "embed")
        self.up = Linear(spec.width, dim, role="in", bias=spec.bias)
        self.scale = dim**0.5 if spec.scale == "sqrt_dim" else 1.0

    def forward(self, tokens: Tensor, frame: Frame = Frame()) -> Tensor:
        return F.embedding(tokens, self.weight) * self.scale

    def lift(self, x: Tensor) -> Tensor:
        return self.up(x)

    def score_flops(self, tokens: int) -> int:
        return 2 * tokens * self.up.weight.numel() + self.table_flops(tokens)

    def table_scores(self, x: Tensor) -> Tensor:
        return product(x, self.weight)

    def table_flops(self, tokens: int) -> int:
        return 2 * tokens * self.weight.numel()

    def table(self) -> Tensor:
        return self.weight

    def lower(self, h: Tensor) -> Tensor:
        return h @ self.up.weight
