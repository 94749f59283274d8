"""A vector for each token and for each n-gram that ends with it: a text as a bag of words and phrases, in order.

x_t = E[w_t] + sum_{n=2..N} G[hash(w_{t-n+1}, .., w_t) mod buckets]          (arXiv 1607.01759, section 2.2)
Different n-grams may share a row of G. An n-gram never begins before its document does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Count, Embedding, EmbeddingSpec, Frame, Range, Site, param
from anyformer.errors import SpecError
from anyformer.ops.decode_step import product
from anyformer.ops.padding import compact, take

PRIME, MULTIPLIER = 2_147_483_647, 1_000_003
"""Of the hash h <- (MULTIPLIER h + token) mod PRIME, which stays below 2^63 for vocabularies of up to a billion."""


@dataclass(frozen=True, kw_only=True)
class NGrams(EmbeddingSpec, kind="n_grams"):
    """A vector for each token plus one for each n-gram that ends with it, from a hashed table; for encoders."""

    limits: ClassVar[Mapping[str, str]] = {
        "causal": "a decoder generates token by token, and the embedding is not passed the tokens before"
    }

    longest: Annotated[int, Range(low=2, high=16)] = 2
    """Number of tokens of the longest n-gram."""
    buckets: Count = 65_536
    """Rows of the table that n-grams are hashed to."""

    @classmethod
    def examples(cls) -> "tuple[NGrams, ...]":
        return (cls(longest=3, buckets=50),)

    def build(self, site: Site, vocab: int) -> "NGramsModule":
        if site.causal:
            raise SpecError(
                "n_grams needs the tokens before, which a decoder that generates token by token does not pass. "
                "Use it in an encoder."
            )
        return NGramsModule(self, vocab, site.dim)


class NGramsModule(Embedding):
    reads_neighbours = True

    def __init__(self, spec: NGrams, vocab: int, dim: int):
        super().__init__()
        self.width, self.longest = dim, spec.longest
        self.weight = param((vocab, dim), "embed")
        self.grams = param((spec.buckets, dim), "embed")

    def forward(self, tokens: Tensor, frame: Frame = Frame()) -> Tensor:
        x = F.embedding(tokens, self.weight)
        starts = frame.document_starts(x)
        document = torch.zeros_like(tokens) if starts is None else starts.cumsum(1)
        if frame.valid is None:
            return x + self._grams(tokens, document)
        order = compact(frame.valid)  # padding goes to the end, where no n-gram of a valid token contains it
        return x + take(self._grams(take(tokens, order.order), take(document, order.order)), order.back)

    def _grams(self, tokens: Tensor, document: Tensor) -> Tensor:
        """The sum of the vectors of all n-grams that end at each token."""
        length, hashed = tokens.shape[1], tokens
        total = self.grams.new_zeros(*tokens.shape, self.width)
        for back in range(1, self.longest):
            earlier = F.pad(tokens, (back, 0))[:, :length]
            same = document == F.pad(document, (back, 0), value=-1)[:, :length]
            hashed = (hashed * MULTIPLIER + earlier) % PRIME
            total = total + F.embedding(hashed % len(self.grams), self.grams) * same[..., None]
        return total

    def table_scores(self, x: Tensor) -> Tensor:
        return product(x, self.weight)

    def table_flops(self, tokens: int) -> int:
        return 2 * tokens * self.weight.numel()

    def table(self) -> Tensor:
        return self.weight
