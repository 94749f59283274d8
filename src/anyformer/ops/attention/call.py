"""Who sees whom in one attention call: a rule together with the tokens it is asked about."""

from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from anyformer.core.frame import Documents, Marks
from anyformer.core.masks import Causal, Full, MaskRule


class AttentionCall(NamedTuple):
    """A rule, the queries and the keys of one call."""

    rule: MaskRule
    q: Marks
    """[b t], or [1 t] where all rows are alike."""
    k: Marks
    valid: Tensor | None = None
    """[b s]: keys that exist; None: all."""
    plain: bool = False
    """Queries and keys are the same tokens 0..t-1: a static rule alone decides."""
    key: str = ""
    """The rule's entry in the book of rules, for what is prepared once for a rule and a length."""
    documents: Documents | None = None
    """Where the segments of queries and keys begin, if they are the same tokens."""

    def is_causal(self) -> bool:
        """The plain causal triangle, for which every kernel has a path of its own."""
        return self.plain and isinstance(self.rule, Causal) and self.valid is None

    def is_sparse(self) -> bool:
        """A rule of its own, known from the length alone: worth a look at its blocks."""
        return self.plain and self.rule.static and not isinstance(self.rule, Full | Causal)

    def mask(self) -> Bool[Tensor, "b t s"] | None:
        """Written out; None where every query sees every key."""
        if isinstance(self.rule, Full):
            return None if self.valid is None else self.valid[:, None, :].expand(-1, self.q.position.shape[-1], -1)
        allowed = self.rule.allows(self.q.as_queries(), self.k.as_keys())
        allowed = torch.broadcast_to(
            allowed, (*allowed.shape[:-2], self.q.position.shape[-1], self.k.position.shape[-1])
        )
        return allowed if self.valid is None else allowed & self.valid[:, None, :]
