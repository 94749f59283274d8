"""A class for each token: tags of words, the ends of an answer, ELECTRA's replaced or not.

logits_t = W_y dropout(phi(W h_t + b)) + c; the hidden layer only if `hidden` is given         (arXiv 2003.10555)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Borrowed, Chance, Count, Embedding, Frame, Head, HeadSpec, Linear, Site
from anyformer.ops.activations import ACTIVATION_FUNCTIONS, Activation


@dataclass(frozen=True, kw_only=True)
class TokenClassifier(HeadSpec, kind="token_classifier"):
    """A class for each token."""

    classes: Count
    """Number of classes; 1 for a score."""
    hidden: Count | None = None
    """Width of a hidden layer before the last one; no hidden layer if not given."""
    activation: Activation = "gelu"
    """Activation of the hidden layer."""
    dropout: Chance = 0.0
    """Dropout on the input of the last layer."""

    @classmethod
    def examples(cls) -> "tuple[TokenClassifier, ...]":
        return cls(classes=5), cls(classes=1, hidden=24)

    @property
    def outcomes(self) -> int:
        return self.classes

    @property
    def has_probabilities(self) -> bool:
        return self.classes > 1

    def build(self, site: Site, embedding: Borrowed[Embedding], vocab: int) -> "TokenClassifierHead":
        return TokenClassifierHead(self, site.dim)


class TokenClassifierHead(Head):
    def __init__(self, spec: TokenClassifier, dim: int):
        super().__init__()
        self.layer = Linear(dim, spec.hidden, role="in", bias=True) if spec.hidden else None
        self.activation = ACTIVATION_FUNCTIONS[spec.activation]
        self.classes = Linear(spec.hidden or dim, spec.classes, role="head", bias=True)
        self.dropout = spec.dropout

    def forward(self, h: Tensor, frame: Frame) -> Tensor:
        if self.layer is not None:
            h = self.activation(self.layer(h))
        return self.classes(torch.dropout(h, self.dropout, self.training))
