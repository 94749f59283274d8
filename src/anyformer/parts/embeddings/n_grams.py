"""A vector for each token and for each n-gram that ends with it: a text as a bag of words and phrases, in order.

x_t = E[w_t] + sum_{n=2..N} G[hash(w_{t-n+1}, .., w_t) mod buckets]    (arXiv 1607.01759, section 2.2; 2601.07372)
Different n-grams may share a row of G. An n-gram never begins before its document does. A decoder keeps the last N - 1
tokens; what counts of n-grams tell is then looked up and need not be computed, so a few updates suffice to learn it.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Count, Embedding, EmbeddingSpec, Frame, Range, Site, param
from anyformer.ops.convolution import ConvolutionRow, Span, back_in_place, laid, left_behind, neighbours
from anyformer.ops.decode_step import product

PRIME, MULTIPLIER = 2_147_483_647, 1_000_003
"""Of the hash h <- (MULTIPLIER h + token) mod PRIME, which stays below 2^63 for vocabularies of up to a billion."""


@dataclass(frozen=True, kw_only=True)
class NGrams(EmbeddingSpec, kind="n_grams"):
    """A vector for each token plus one for each n-gram that ends with it, from a hashed table."""

    longest: Annotated[int, Range(low=2, high=16)] = 2
    """Number of tokens of the longest n-gram."""
    buckets: Count = 65_536
    """Rows of the table that n-grams are hashed to."""

    @classmethod
    def examples(cls) -> "tuple[NGrams, ...]":
        return (cls(longest=3, buckets=50),)

    def build(self, site: Site, vocab: int) -> "NGramsModule":
        return NGramsModule(self, vocab, site.dim)


class NGramsModule(Embedding):
    remembers = True

    def __init__(self, spec: NGrams, vocab: int, dim: int):
        super().__init__()
        self.width, self.span = dim, Span(spec.longest)
        self.weight = param((vocab, dim), "embed")
        self.grams = param((spec.buckets, dim), "embed")

    def init_state(self, batch: int) -> Tensor:
        """[b p 1]: the last tokens, counted from one; 0: there is none."""
        return torch.zeros(batch, self.span.before, 1, dtype=torch.long, device=self.weight.device)

    def forward(self, tokens: Tensor, frame: Frame = Frame()) -> Tensor:
        return self._vectors(tokens, self._row(tokens, frame))

    def continued(self, tokens: Tensor, frame: Frame, state: Tensor) -> tuple[Tensor, Tensor]:
        row = self._row(tokens, frame, state)
        return self._vectors(tokens, row), left_behind(row, state)

    def _row(self, tokens: Tensor, frame: Frame, state: Tensor | None = None) -> ConvolutionRow:
        return laid(tokens[..., None] + 1, frame, self.span, state)

    def _vectors(self, tokens: Tensor, row: ConvolutionRow) -> Tensor:
        """The vectors of the tokens, each plus the sum of those of the n-grams that end with it."""
        hashed, *earlier = reversed([*neighbours(row, self.span)])  # [b t 1] each
        total = self.grams.new_zeros(*tokens.shape, self.width)
        for before in earlier:
            hashed = (hashed * MULTIPLIER + before) % PRIME
            total = total + F.embedding(hashed[..., 0] % len(self.grams), self.grams) * (before > 0)
        return F.embedding(tokens, self.weight) + back_in_place(total, row)

    def table_scores(self, x: Tensor) -> Tensor:
        return product(x, self.weight)

    def table_flops(self, tokens: int) -> int:
        return 2 * tokens * self.weight.numel()

    def table(self) -> Tensor:
        return self.weight
