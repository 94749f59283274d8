"""Hidden states: the output of a layer of the student, projected to the width of the teacher, predicts the teacher's.

distance_t = |W h_student,t - h_teacher,t|^2 / |h_teacher,t|^2          (FitNets, arXiv 1412.6550; TinyBERT, 1909.10351)
W is learned, one matrix for all layers; there is none if both widths are equal. Relative to the size of the teacher's
hidden states, so that one weight suits every teacher and layer: 1 if nothing is predicted, 0 if all is.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from anyformer.core import Linear
from anyformer.objectives.matches.match import Match


@dataclass(frozen=True, kw_only=True)
class HiddenMatch(Match, kind="hidden"):
    """The hidden states behind the layers, through a learned projection if the widths differ."""

    taps = "stream"

    def projection(self, ours: int, theirs: int) -> Linear | None:
        return Linear(ours, theirs, role="in") if ours != theirs else None

    def distance(self, ours: Tensor, theirs: Tensor, projection: Linear | None) -> Float[Tensor, "b t"]:
        ours, theirs = (ours if projection is None else projection(ours)).float(), theirs.float()
        size = theirs.square().sum(-1)
        return (ours - theirs).square().sum(-1) / size.clamp(min=torch.finfo(size.dtype).tiny)
