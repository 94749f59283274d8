"""Attention with linear biases: the further away a key, the lower its score; each head has a slope of its own.

score_ij = scale q_i . k_j - m_h |i - j|,  m_h = 2^(-8 h / H)          (arXiv 2108.12409)
For H that is no power of two: the slopes of the power of two below, then every other slope of the one above.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Bias, Heads, Marks, Position, PositionSpec, Site


@dataclass(frozen=True, kw_only=True)
class Alibi(PositionSpec, kind="alibi"):
    """Scores fall linearly with distance, with a slope for each head; nothing is learned."""

    def build(self, site: Site, heads: Heads) -> "AlibiModule":
        return AlibiModule(heads.number)


class AlibiModule(Position):
    def __init__(self, heads: int):
        super().__init__()
        self.h = heads

    def bias(self, q: Tensor, k: Tensor, q_marks: Marks, k_marks: Marks) -> Bias:
        q_at, k_at = (marks.position.expand(q.shape[0], -1) for marks in (q_marks, k_marks))
        slopes = head_slopes(self.h, q.device)  # without `self`, one compiled kernel serves all layers

        def dense() -> Tensor:
            distance = (q_marks.as_queries().position - k_marks.as_keys().position).abs()  # [b t s]
            return -(slopes[:, None, None] * distance[:, None]).type_as(q)

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score - slopes[h] * (q_at[b, i] - k_at[b, j]).abs()

        return Bias(dense, score_mod)


def head_slopes(heads: int, device: torch.device | None = None) -> Tensor:
    """A geometric sequence that starts at its own ratio and ends at 2^-8 where `heads` is a power of two.

    Made anew for each call: a buffer would be rounded with the model, and distances make the error large.
    """
    power = 1 << (heads.bit_length() - 1)
    number = torch.arange(heads, device=device)
    whole, between = -8 * (number + 1), -4 * (2 * (number - power) + 1)
    return torch.exp2(whole.where(number < power, between).float() / power)
