"""Attention maps: where each token of the student looks, compared with where it looks in the teacher.

distance_t = KL(A_teacher,t || A_student,t),   A_t: the weights of token t on all tokens, averaged over the heads
As in MiniLM (arXiv 2002.10957), but with the mean over heads, whose number may differ. The maps of all pairs of tokens
are stored, which fused attention avoids: memory grows with the square of the length.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from anyformer.core import Linear
from anyformer.objectives.matches.match import Match


@dataclass(frozen=True, kw_only=True)
class AttentionMatch(Match, kind="attention"):
    """The attention weights of the layers, averaged over heads."""

    taps = "*.pattern"

    def distance(self, ours: Tensor, theirs: Tensor, projection: Linear | None) -> Float[Tensor, "b t"]:
        student, teacher = (
            weights.float().mean(1) if weights.dim() == 4 else weights.float() for weights in (ours, theirs)
        )
        # The smallest number stands for a weight of 0, where the student must not look and the teacher does.
        logs = student.clamp(min=torch.finfo(student.dtype).tiny).log()
        return F.kl_div(logs, teacher, reduction="none").sum(-1)
