"""Linformer: keys and values of all tokens are projected to a few slots before attention, so that cost is linear.

head_h = softmax(Q_h (E_h K_h)^T / sqrt(c)) (F_h V_h) ,  E_h, F_h of size rank x max_len          (arXiv 2006.04768)
A slot mixes all positions, so there is no causal form, and the projections end at the longest length.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core.fields import Count
from anyformer.core.frame import Frame, Marks
from anyformer.core.masks import Full
from anyformer.core.module import Borrowed, Call, Linear, Module, Site, Tap, param
from anyformer.core.part import Out, Part, PartSpec
from anyformer.errors import SpecError
from anyformer.ops.attention.attend import Taps, attend
from anyformer.ops.attention.call import Keys


@dataclass(frozen=True, kw_only=True)
class Linformer(PartSpec, kind="linformer"):
    """Attention to a few learned mixtures of all tokens instead of to the tokens: linear in the length."""

    perspective = "efficiency"
    limits: ClassVar[Mapping[str, str]] = {
        "causal": "every slot mixes the future with the past",
        "packing": "every slot mixes all documents of a row",
        "length": "the projections end at max_len",
    }

    heads: Count = 4
    """Number of heads."""
    rank: Count = 128
    """Slots that all keys and values of a head are projected to."""
    share: Literal["none", "heads", "key_value", "layers"] = "heads"
    """What shares a projection. none: each head has matrices E for keys and F for values; heads: all heads share one E
    and one F; key_value: one matrix is both E and F; layers: all layers share that matrix."""

    def build(self, site: Site) -> "LinformerPart":
        if site.causal:
            raise SpecError(
                "linformer mixes the future into every key. Use it in an encoder, or attention with a window."
            )
        return LinformerPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[Linformer, ...]":
        return (cls(rank=4, share="none"), cls(rank=4), cls(rank=4, share="key_value"), cls(rank=4, share="layers"))


class Projection(Module):
    """The weight of every position in each slot: E for the keys and F for the values, or one for both."""

    def __init__(self, spec: Linformer, max_len: int):
        super().__init__()
        self.heads = spec.heads if spec.share == "none" else 1
        rows, both = self.heads * spec.rank, spec.share in ("none", "heads")
        self.kinds = 2 if both else 1
        self.weight = param((self.kinds * rows, max_len), "key")
        if both:
            self.roles["weight"] = (("key", rows), ("value", rows))

    def forward(self, x: Tensor, frame: Frame) -> tuple[Tensor, ...]:
        """E and F at the positions of x's tokens: [b h r t], with b or h of size 1 if shared."""
        if x.shape[1] > self.weight.shape[1]:
            longest = self.weight.shape[1]
            raise SpecError(f"{x.shape[1]} tokens do not fit linformer's {longest} positions; raise max_len.")
        if frame.positions is None:
            shares = self.weight[None, :, : x.shape[1]]
        else:
            shares = F.embedding(frame.positions, self.weight.T).transpose(1, 2)  # [b rows t]
        shares = shares.unflatten(1, (self.kinds, self.heads, -1))
        return shares[:, 0], shares[:, -1]

    if TYPE_CHECKING:
        __call__ = forward


class LinformerPart(Part):
    def __init__(self, spec: Linformer, site: Site):
        super().__init__()
        self.h, self.c, self.rank = spec.heads, site.head_width(spec.heads), spec.rank
        self.scale, self.rule = self.c**-0.5, Full()
        self.qkv = Linear(site.dim, (site.dim,) * 3, role=("query", "key", "value"), heads=self.h)
        self.out = Linear(site.dim, site.dim, role="out")
        if spec.share == "layers":
            self.borrowed = site.share(f"linformer/{spec.rank}", lambda: Projection(spec, site.max_len))
        else:
            self.projection = Projection(spec, site.max_len)
            self.borrowed = Borrowed(self.projection)
        self.pattern, self.key_shares = Tap(), Tap()

    def forward(self, x: Tensor, frame: Frame, state: tuple[()] | None = None) -> Out:
        q, k, v = self.qkv(x).unflatten(-1, (3 * self.h, self.c)).chunk(3, dim=2)  # [b t h c]
        if frame.valid is not None:  # padding adds nothing to any slot
            k, v = (y.masked_fill(~frame.valid[..., None, None], 0.0) for y in (k, v))
        key_shares, value_shares = self.borrowed.module(x, frame)
        shares = self.key_shares(key_shares), value_shares  # [b h r t]
        k, v = (torch.einsum("bhrt,bthc->brhc", share, y) for share, y in zip(shares, (k, v), strict=True))
        slots = torch.arange(self.rank, device=x.device)[None]
        keys, taps = Keys(k, v, Marks(slots)), Taps(self.pattern)
        y = attend(q, frame.marks_for(x), keys, rule=self.rule, scale=self.scale, taps=taps)
        return Out(self.out(y.flatten(2)), state)

    def core_flops(self, call: Call) -> tuple[int, int]:
        forward = 8 * call.batch * call.length * self.rank * self.h * self.c  # E K, F V, scores, averages
        return forward, 2 * forward
