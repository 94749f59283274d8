"""Longformer's attention: a window for most tokens, and global tokens with projections of their own.

token i:   y_i = softmax over |i - j| < window or j < tokens of (scale q_i . k_j) v_j
global g:  y_g = softmax over all j of (scale q'_g . k'_j) v'_j ,  q', k', v' by other matrices      (arXiv 2004.05150)
With equal projections it is `attention` with the mask `window` or `global_tokens`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from anyformer.core import Call, Chance, Count, Frame, Linear, Marks, Out, Part, PartSpec, Site, Tap
from anyformer.core.masks import Full
from anyformer.errors import SpecError
from anyformer.ops.attention.attend import Taps, attend
from anyformer.ops.attention.call import Keys
from anyformer.parts.masks.global_tokens import GlobalTokens
from anyformer.parts.masks.window import Window


@dataclass(frozen=True, kw_only=True)
class Longformer(PartSpec, kind="longformer"):
    """A window of attention, and a few global tokens that see all and are seen by all, with their own projections."""

    perspective = "efficiency"
    limits: ClassVar[Mapping[str, str]] = {"causal": "a global token sees all later tokens"}

    heads: Count = 4
    """Number of heads."""
    window: Count = 256
    """Reach of the window, the token itself included: a token sees window - 1 neighbours on each side."""
    tokens: Count = 1
    """How many tokens at the beginning of a text are global."""
    bias: bool = False
    """Adds a learned bias to the projections."""
    dropout: Chance = 0.0
    """Dropout on the attention weights."""

    def build(self, site: Site) -> "LongformerPart":
        if site.causal:
            raise SpecError(
                "longformer's global tokens see the future. Use it in an encoder, or attention with a window."
            )
        return LongformerPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[Longformer, ...]":
        return cls(window=3), cls(window=2, tokens=3, bias=True)


class LongformerPart(Part):
    def __init__(self, spec: Longformer, site: Site):
        super().__init__()
        self.h, self.c, self.tokens = spec.heads, site.head_width(spec.heads), spec.tokens
        self.scale, self.dropout = self.c**-0.5, spec.dropout
        self.local, self.full = Window(size=spec.window) | GlobalTokens(tokens=spec.tokens), Full()
        dim, heads = site.dim, self.h
        self.qkv = Linear(dim, (dim,) * 3, role=("query", "key", "value"), bias=spec.bias, heads=heads)
        self.global_q = Linear(dim, dim, role="query", bias=spec.bias, heads=heads)
        self.global_kv = Linear(dim, (dim, dim), role=("key", "value"), bias=spec.bias, heads=heads)
        self.out = Linear(dim, dim, role="out", bias=spec.bias)
        self.pattern, self.global_pattern = Tap(), Tap()

    def forward(self, x: Tensor, frame: Frame, state: tuple[()] | None = None) -> Out:
        marks, dropout = frame.marks_for(x), self.dropout if self.training else 0.0
        q, k, v = self.qkv(x).unflatten(-1, (3 * self.h, self.c)).chunk(3, dim=2)  # [b t h c]
        keys = Keys(k, v, marks, frame.valid, frame.plain, documents=frame.document_bounds)
        taps = Taps(self.pattern)
        y = attend(q, marks, keys, rule=self.local, scale=self.scale, taps=taps, dropout=dropout)
        # Without positions the global tokens are at the front; otherwise they may be anywhere, so all are computed.
        hubs = x[:, : self.tokens] if frame.positions is None and frame.segments is None else x
        z = self._attend_globally(hubs, x, frame, dropout)
        if hubs is not x:
            y = torch.cat((z, y[:, hubs.shape[1] :]), dim=1)
        else:
            y = z.where((marks.position < self.tokens)[..., None, None], y)
        return Out(self.out(y.flatten(2)), state)

    def _attend_globally(self, hubs: Tensor, x: Tensor, frame: Frame, dropout: float) -> Tensor:
        marks = frame.marks_for(x)
        q = self.global_q(hubs).unflatten(-1, (self.h, self.c))  # [b g h c]
        k, v = self.global_kv(x).unflatten(-1, (2 * self.h, self.c)).chunk(2, dim=2)  # [b t h c]
        at = Marks(*(None if mark is None else mark[:, : hubs.shape[1]] for mark in marks))  # type: ignore[arg-type]
        taps = Taps(self.global_pattern)
        return attend(
            q, at, Keys(k, v, marks, frame.valid), rule=self.full, scale=self.scale, taps=taps, dropout=dropout
        )

    def core_flops(self, call: Call) -> tuple[int, int]:
        local = self.local.pairs(call.length, call.length)
        pairs = local + min(self.tokens, call.length) * call.length
        forward = 4 * call.batch * pairs * self.h * self.c
        return forward, 2 * forward
