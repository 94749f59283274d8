"""The prefix-LM mask: a prompt read in both directions, a continuation read from left to right.

i sees j  iff  j <= i  or  j < prefix          (arXiv 1910.10683, section 3.2.1)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from anyformer.core import Marks, MaskRule


@dataclass(frozen=True, kw_only=True)
class Prefix(MaskRule, kind="prefix"):
    """Bidirectional over the first `frame.marks.prefix` tokens of a row, causal after them; causal if not set."""

    perspective = "adaptation"
    static = False
    directed = True
    limits: ClassVar[Mapping[str, str]] = {"chunks": "a prefix that sees its own end must be read in one call"}

    def allows(self, q: Marks, k: Marks) -> Tensor:
        behind = k.position <= q.position
        return behind if q.prefix is None else behind | (k.position < q.prefix)

    def pairs(self, q_len: int, k_len: int) -> int:
        """Counted without marks, as causal: how long the prefixes are is known only from the data."""
        return q_len * (k_len - q_len) + q_len * (q_len + 1) // 2
