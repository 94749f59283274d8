"""Random keys: every query sees exactly r keys, drawn once from a seed; the key need not see the query.

i sees j  iff  j is one of the r picks of i, one from each of r equal stretches of the candidates, by a hash of
(seed, i, stretch)          (arXiv 2007.14062, section 2: a random graph in which each query has r keys)
Candidates are the tokens before i, or the first `length` tokens on both sides of it. No table: the rule is arithmetic.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Amount, Count, Marks, MaskRule
from anyformer.errors import SpecError
from anyformer.ops.hashing import hash_bits, pick_earlier


@dataclass(frozen=True, kw_only=True)
class RandomKeys(MaskRule, kind="random_keys"):
    """Each query sees exactly `count` keys, drawn once from a seed. Combine it with a local rule by `or`."""

    perspective = "efficiency"

    count: Count = 3
    """Keys that a query sees, in blocks; all candidates while there are fewer."""
    length: Count | None = None
    """Draws from the first `length` tokens, before and after the query; from the tokens before the query if not given,
    which is the choice for a decoder."""
    block: Count = 1
    """Tokens per block; the queries of a block share their keys."""
    seed: Amount = 0
    """Seed that the keys are drawn from."""

    def check(self) -> None:
        if self.length is not None and self.length % self.block:
            raise SpecError(f"length={self.length} must be a multiple of block={self.block}.")
        if self.length is not None and self.length < self.count * self.block:
            raise SpecError(f"length={self.length} has fewer than count={self.count} blocks of {self.block} tokens.")

    def allows(self, q: Marks, k: Marks) -> Tensor:
        query, key = (marks.position.to(torch.int64) // self.block for marks in (q, k))
        allowed = torch.zeros_like(query - key, dtype=torch.bool)
        for stretch in range(self.count):
            allowed = allowed | (key == self._pick(query, stretch))
        return allowed

    def _pick(self, query: Tensor, stretch: int) -> Tensor:
        """The block that a query's block picks of a stretch of its candidates; -1 if there are too few."""
        if self.length is None:
            return pick_earlier(self.seed, query, stretch, self.count)
        blocks = self.length // self.block
        start, stop = stretch * blocks // self.count, (stretch + 1) * blocks // self.count
        return start + hash_bits(self.seed, query, stretch) % (stop - start)

    @classmethod
    def examples(cls) -> "tuple[RandomKeys, ...]":
        return (cls(count=2), cls(count=2, length=12, block=2, seed=7))
