"""Dot-product attention of a recurrent decoder: the state is the query, and with its context it makes the output.

e_{ti} = s_t . h_i  (or s_t . W h_i) ;  a_t = softmax(e_t) ;  c_t = sum_i a_{ti} h_i ;  y_t = tanh(W_c [c_t; s_t])
(arXiv 1508.04025, eq. 5 and 7)          a branch of `cross` behind the recurrence, joined by `replace`
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from anyformer.core import Call, Frame, Linear, Memory, Out, Part, PartSpec, Site, Tap, fork, memory_of
from anyformer.errors import SpecError
from anyformer.ops.attention.source_attention import Source, blend, product_flops, shares


@dataclass(frozen=True, kw_only=True)
class LuongAttention(PartSpec, kind="luong_attention"):
    """Luong's attention: the plain product of state and source, then both through one layer; for `cross`."""

    sources = ("memory",)

    score: Literal["dot", "general"] = "dot"
    """dot: the product of state and source vector, which needs an encoder as wide as the decoder; general: with a
    learned matrix between both."""

    def build(self, site: Site) -> "LuongAttentionPart":
        if self.score == "dot" and site.memory_dim not in (None, site.dim):
            rule = f"needs an encoder as wide as the decoder, not {site.memory_dim} and {site.dim}"
            raise SpecError(f'score = "dot" {rule}. Use score = "general".')
        return LuongAttentionPart(self, site)


class LuongAttentionPart(Part):
    def __init__(self, spec: LuongAttention, site: Site):
        super().__init__()
        self.dim, self.values = site.dim, site.memory_dim or site.dim
        self.key = Linear(self.values, site.dim, role="key") if spec.score == "general" else None
        self.out = Linear(self.values + site.dim, site.dim, role="out")
        self.pattern = Tap()

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> Source:
        return fork(self._source(memory))  # a state is written in place, the encoder's output must not be

    def forward(self, x: Tensor, frame: Frame, state: Source | None = None) -> Out:
        keys, values, valid = state or self._source(frame.memory)
        weights = self.pattern(shares(torch.bmm(x, keys.mT), frame, valid))  # [b t s]
        return Out(self.out(torch.cat((blend(weights, values), x), dim=-1)).tanh(), state)

    def _source(self, memory: Memory | None) -> Source:
        memory = memory_of(memory, "luong_attention")
        return Source(memory.x if self.key is None else self.key(memory.x), memory.x, memory.mask())

    def core_flops(self, call: Call) -> tuple[int, int]:
        shape, learns = (call.batch, call.length, call.source), call.memory_learns
        scores = product_flops(*shape, self.dim, keys_learn=learns or self.key is not None)
        if not call.input_learns:  # the first query of `attention_fed` is the zero state
            scores = (scores[0], scores[1] - scores[0])
        sums = product_flops(*shape, self.values, keys_learn=learns)
        return scores[0] + sums[0], scores[1] + sums[1]
