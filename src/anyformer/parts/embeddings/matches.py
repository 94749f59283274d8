"""A vector for each token, and one for whether it occurs in the other text of a pair: what two texts have in common.

x_t = E[w_t] + U[s_t, m_t],   s_t: which text, m_t = 1 if w_t is in the other one     (arXiv 1704.00051, f_exact_match)
From a few thousand pairs a network does not learn to compare words: at the start all vectors are equally unlike.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Embedding, EmbeddingSpec, Frame, Site, param
from anyformer.errors import SpecError
from anyformer.ops.decode_step import product


@dataclass(frozen=True, kw_only=True)
class Matches(EmbeddingSpec, kind="matches"):
    """A vector for each token, and one for whether it occurs in the other text of a pair; for encoders."""

    limits: ClassVar[Mapping[str, str]] = {
        "causal": "a word of the first text can be marked only by reading the second"
    }

    def build(self, site: Site, vocab: int) -> "MatchesModule":
        if site.causal:
            raise SpecError(
                "matches compares a text with the one behind it, which a decoder must not see. Use an encoder."
            )
        return MatchesModule(vocab, site.dim)


class MatchesModule(Embedding):
    reads_ahead = True

    def __init__(self, vocab: int, dim: int):
        super().__init__()
        self.width = dim
        self.weight = param((vocab, dim), "embed")
        self.marks = param((4, dim), "embed")

    def forward(self, tokens: Tensor, frame: Frame = Frame()) -> Tensor:
        second = torch.zeros_like(tokens) if frame.types is None else frame.types.clamp(max=1)
        mark = 2 * second + in_other_text(tokens, second, frame)
        return F.embedding(tokens, self.weight) + F.embedding(mark, self.marks)

    def table_scores(self, x: Tensor) -> Tensor:
        return product(x, self.weight)

    def table_flops(self, tokens: int) -> int:
        return 2 * tokens * self.weight.numel()

    def table(self) -> Tensor:
        return self.weight


def in_other_text(tokens: Tensor, types: Tensor, frame: Frame) -> Tensor:
    """[b t]: whether each token occurs in the same document with another type, padding aside."""
    pairs = (tokens[:, :, None] == tokens[:, None, :]) & (types[:, :, None] != types[:, None, :])  # [b t s]
    if frame.valid is not None:
        pairs = pairs & frame.valid[:, None, :]
    if frame.segments is not None:
        pairs = pairs & (frame.segments[:, :, None] == frame.segments[:, None, :])
    return pairs.any(-1)
