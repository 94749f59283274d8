"""Random links between blocks of tokens, the same whenever the seed is the same.

Block n picks one block of each of `count` equal stretches of 0..n-1, by a hash of (seed, n, stretch); a picked block
sees block n, too. BigBird adds such links to a window and to global tokens          (arXiv 2007.14062)
No table: the rule is arithmetic, does not depend on the length, and a causal stack keeps the half that looks back.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Amount, Count, Marks, MaskRule
from anyformer.ops.hashing import pick_earlier


@dataclass(frozen=True, kw_only=True)
class RandomBlocks(MaskRule, kind="random_blocks"):
    """Each block of tokens sees a few earlier blocks, drawn once from a seed, and is seen by them."""

    perspective = "efficiency"

    count: Count = 3
    """Earlier blocks that a block picks; all of them while there are fewer."""
    block: Count = 64
    """Tokens per block."""
    seed: Amount = 0
    """Seed that the links are drawn from."""

    def allows(self, q: Marks, k: Marks) -> Tensor:
        a, b = (marks.position.to(torch.int64) // self.block for marks in (q, k))
        allowed = torch.zeros_like(a - b, dtype=torch.bool)
        for stretch in range(self.count):  # one pick for each query and key: pairs only compare them
            pick_of_a, pick_of_b = (pick_earlier(self.seed, block, stretch, self.count) for block in (a, b))
            allowed = allowed | (b == pick_of_a) | (a == pick_of_b)
        return allowed

    @classmethod
    def examples(cls) -> "tuple[RandomBlocks, ...]":
        return (cls(count=2, block=2), cls(count=1, block=3, seed=7))
