"""Words from a stream whose halves read in opposite directions, independently: ELMo's language model.

ahead: P(w_{k+1} | w_1 .. w_k) from the first half at k ;  back: P(w_{k-1} | w_k .. w_N) from the second, by one softmax
Both together guess a word from all others: logits_k = W a_{k-1} + W b_{k+1}          (arXiv 1802.05365, section 3.1)
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Borrowed, Embedding, Frame, Head, HeadSpec, Linear, Site, kind_of
from anyformer.errors import SpecError, at
from anyformer.parts.heads.untied import Untied


@dataclass(frozen=True, kw_only=True)
class BothDirectionsHead(HeadSpec, kind="both_directions"):
    """Words from two halves that read in opposite directions, by one head for both."""

    scores_words = True

    head: HeadSpec | None = None
    """The head over words, half as wide as the stream; `untied` if not given. In front of a tied head one matrix brings
    both halves to the width of the stream."""

    @property
    def views(self) -> tuple[str, ...]:
        return ("ahead", "back")

    def build(self, site: Site, embedding: Borrowed[Embedding], vocab: int) -> "BothDirectionsHeadModule":
        if site.causal:
            raise SpecError("both_directions needs a half that reads from the end; only an encoder has one.")
        if site.dim % 2:
            raise SpecError(f"dim={site.dim} has no halves for two directions. Make it even.")
        head, half = self.head or Untied(), site.dim // 2
        with at("head"):
            if head.pools:
                raise SpecError(f"{head.kind} gives one output per sequence. Use untied, tied or masked_words.")
            built = head.build(site if head.tied else replace(site, dim=half), embedding, vocab)
        return BothDirectionsHeadModule(built, Linear(half, site.dim, role="out") if head.tied else None)

    def check(self) -> None:
        if self.head and any(isinstance(spec, BothDirectionsHead) for _, spec in self.head.walk()):
            raise SpecError("head: both_directions inside both_directions: the stream has two directions, not four.")

    @classmethod
    def examples(cls) -> "tuple[BothDirectionsHead, ...]":
        return cls(), cls(head=kind_of(HeadSpec, "tied")())


class BothDirectionsHeadModule(Head):
    def __init__(self, head: Head, lift: Linear | None):
        super().__init__()
        self.head, self.lift = head, lift
        loan = None if lift is None else Borrowed(lift)  # the sides are views: head and matrix are owned once
        self.sides = {"ahead": OneSide(Borrowed(head), loan, 0), "back": OneSide(Borrowed(head), loan, 1)}

    def forward(self, h: Tensor, frame: Frame) -> Tensor:
        """Logits of each word from its neighbours; zeros for a word without any."""
        starts = frame.document_starts(h)
        starts = torch.zeros(h.shape[:2], dtype=torch.bool, device=h.device) if starts is None else starts
        edges = F.pad(starts[:, 1:], (1, 1), value=True)  # [b t+1]: no guess from one side of an edge to the other
        if frame.valid is not None:
            edges = edges | F.pad(~frame.valid, (1, 0)) | F.pad(~frame.valid, (0, 1))
        ahead, back = (self.sides[side](h, frame) for side in ("ahead", "back"))
        ahead = F.pad(ahead[:, :-1], (0, 0, 1, 0)).masked_fill(edges[:, :-1, None], 0.0)
        return ahead + F.pad(back[:, 1:], (0, 0, 0, 1)).masked_fill(edges[:, 1:, None], 0.0)

    def named(self, name: str) -> Head:
        return self.sides.get(name, self)


class OneSide(Head):
    """The head on one half of the stream: at each place, of the word after it or before it."""

    def __init__(self, head: Borrowed[Head], lift: Borrowed[Linear] | None, place: int):
        super().__init__()
        self.loan, self.lift, self.place = head, lift, place

    def forward(self, h: Tensor, frame: Frame) -> Tensor:
        return self.loan.module(self._half(h), frame)

    def loss(
        self, h: Tensor, frame: Frame, targets: Tensor, weight: Tensor, smoothing: float = 0.0, z: float = 0.0
    ) -> Tensor:
        return self.loan.module.loss(self._half(h), frame, targets, weight, smoothing, z)

    def _half(self, h: Tensor) -> Tensor:
        half = h.chunk(2, dim=-1)[self.place]
        return half if self.lift is None else self.lift.module(half)
