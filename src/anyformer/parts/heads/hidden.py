"""No head: the model returns its hidden states, for a decoder or for code that builds on them."""

from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Borrowed, Embedding, Frame, Head, HeadSpec, Site


@dataclass(frozen=True, kw_only=True)
class Hidden(HeadSpec, kind="hidden"):
    """No head: the hidden states themselves."""

    def build(self, site: Site, embedding: Borrowed[Embedding], vocab: int) -> "HiddenHead":
        return HiddenHead()


class HiddenHead(Head):
    def forward(self, h: Tensor, frame: Frame) -> Tensor:
        return h
