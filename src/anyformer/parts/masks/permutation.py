"""XLNet's mask: words are guessed in a permuted order, and two streams lie side by side in one row.

content i sees content j  iff  order_j <= order_i ;  query i sees content j  iff  order_j < order_i
No token sees a query, which has the position of a word, but not the word.          (arXiv 1906.08237, section 2.3)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Marks, MaskRule


@dataclass(frozen=True, kw_only=True)
class PermutationMask(MaskRule, kind="permutation"):
    """A token sees what `frame.marks.order` puts before it; queries (`stream` 1) not themselves. Full without marks."""

    perspective = "adaptation"
    static = False

    def allows(self, q: Marks, k: Marks) -> Tensor:
        if q.order is None or k.order is None:
            return torch.ones_like(q.position - k.position, dtype=torch.bool)
        if q.stream is None or k.stream is None:
            return k.order <= q.order
        before, itself = k.order < q.order, (k.order == q.order) & (q.stream == 0)
        return (k.stream == 0) & (before | itself)

    def pairs(self, q_len: int, k_len: int) -> int:
        """Counted without marks, as full: the order and the queries are known only from the data."""
        return q_len * k_len
