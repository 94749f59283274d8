"""Dropout with one mask for all tokens of a row, as in T5: a channel is dropped at every position or at none.

y_t = m x_t / (1 - p),  m_c ~ Bernoulli(1 - p) for each row and channel c          (arXiv 1910.10683)
As the last step of a `chain`, it drops channels of the output of another part; in evaluation it is the identity.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Chance, Frame, Out, Part, PartSpec, Site


@dataclass(frozen=True, kw_only=True)
class LengthDropout(PartSpec, kind="length_dropout"):
    """Dropout of whole channels: one mask for all tokens of a row, as in T5."""

    perspective = "generalisation"

    chance: Chance = 0.1
    """Probability that a channel of a row is dropped."""

    @classmethod
    def examples(cls) -> "tuple[LengthDropout, ...]":
        return (cls(chance=0.0),)  # calls in training are compared with each other

    def build(self, site: Site) -> "LengthDropoutPart":
        return LengthDropoutPart(self.chance)


class LengthDropoutPart(Part):
    def __init__(self, chance: float):
        super().__init__()
        self.chance = chance

    def forward(self, x: Tensor, frame: Frame, state: tuple[()] | None = None) -> Out:
        mask = torch.dropout(torch.ones_like(x[:, :1]), self.chance, self.training)  # [b 1 d]
        return Out(x * mask, state)
