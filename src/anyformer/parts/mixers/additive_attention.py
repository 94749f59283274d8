"""Additive attention to an encoder: a small network scores every token of the source, and none of them is projected.

e_{ti} = v . tanh(W_s s_t + W_h h_i + b) ;  a_t = softmax(e_t) ;  c_t = sum_i a_{ti} h_i          (arXiv 1409.0473)
Inside `attention_fed` s_t is the state before the token, and c_t goes into the cell; alone it is a branch of `cross`.
"""

from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Call, Count, Frame, Linear, Memory, Out, Part, PartSpec, Site, Tap, fork, memory_of
from anyformer.ops.attention.source_attention import Source, blend, product_flops, shares


@dataclass(frozen=True, kw_only=True)
class AdditiveAttention(PartSpec, kind="additive_attention"):
    """Bahdanau's attention: a small network scores every token of the source; for `cross` and `attention_fed`."""

    sources = ("memory",)

    hidden: Count | None = None
    """Units of the network that scores; dim if not given."""

    def build(self, site: Site) -> "AdditiveAttentionPart":
        return AdditiveAttentionPart(self, site)


class AdditiveAttentionPart(Part):
    def __init__(self, spec: AdditiveAttention, site: Site):
        super().__init__()
        units, self.values = spec.hidden or site.dim, site.memory_dim or site.dim
        self.query = Linear(site.dim, units, role="query")
        self.key = Linear(self.values, units, role="key", bias=True)
        self.score = Linear(units, 1, role="out")
        self.out = Linear(self.values, site.dim, role="out") if self.values != site.dim else None
        self.pattern = Tap()

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> Source:
        return fork(self._source(memory))  # a state is written in place, the encoder's output must not be

    def forward(self, x: Tensor, frame: Frame, state: Source | None = None) -> Out:
        keys, values, valid = state or self._source(frame.memory)
        hidden = (self.query(x)[:, :, None] + keys[:, None]).tanh()  # [b t s n]
        weights = self.pattern(shares(self.score(hidden)[..., 0], frame, valid))  # [b t s]
        y = blend(weights, values)
        return Out(y if self.out is None else self.out(y), state)

    def _source(self, memory: Memory | None) -> Source:
        memory = memory_of(memory, "additive_attention")
        return Source(self.key(memory.x), memory.x, memory.mask())

    def core_flops(self, call: Call) -> tuple[int, int]:
        return product_flops(call.batch, call.length, call.source, self.values, keys_learn=call.memory_learns)
