"""Another head whose logits are bounded: they grow ever more slowly towards a limit.

logits = cap tanh(l / cap),  l: the logits of the inner head          (arXiv 2408.00118, section 2)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Borrowed, Embedding, Frame, Head, HeadSpec, Positive, Site, kind_of
from anyformer.errors import SpecError, at
from anyformer.ops.devices import at_least_float32
from anyformer.ops.loss import cross_entropy


@dataclass(frozen=True, kw_only=True)
class Capped(HeadSpec, kind="capped"):
    """Another head whose logits stay below a limit (soft-capping)."""

    scores_words = True

    head: HeadSpec
    """The head that scores the words."""
    cap: Positive = 15.0
    """Upper bound of the absolute value of a logit."""

    def check(self) -> None:
        if not self.head.scores_words:
            raise SpecError(f"head: {self.head.kind} does not score words.")

    @classmethod
    def examples(cls) -> "tuple[Capped, ...]":
        return cls(head=kind_of(HeadSpec, "tied")()), cls(head=kind_of(HeadSpec, "untied")(), cap=2.0)

    @property
    def tied(self) -> bool:
        return self.head.tied

    def build(self, site: Site, embedding: Borrowed[Embedding], vocab: int) -> "CappedHead":
        with at("head"):
            return CappedHead(self.cap, self.head.build(site, embedding, vocab))


class CappedHead(Head):
    def __init__(self, cap: float, head: Head):
        super().__init__()
        self.cap, self.head = cap, head

    def forward(self, h: Tensor, frame: Frame) -> Tensor:
        logits = self.head(h, frame)
        return self.cap * torch.tanh(logits.to(at_least_float32(logits)) / self.cap)

    def loss(
        self, h: Tensor, frame: Frame, targets: Tensor, weight: Tensor, smoothing: float = 0.0, z: float = 0.0
    ) -> Tensor:
        product = self.head.product(h)
        if product is None:
            return super().loss(h, frame, targets, weight, smoothing, z)
        return cross_entropy(product, targets, weight, smoothing=smoothing, z=z, cap=self.cap)
