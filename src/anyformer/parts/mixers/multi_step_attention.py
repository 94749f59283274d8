"""ConvS2S's attention: every layer of the decoder attends to the source, with its own token in the query.

q_t = W h_t + b + g_t ;  a_t = softmax(q_t . z_i) ;  c_t = sum_i a_{ti} (z_i + e_i)      (arXiv 1705.03122, eq. 1, 2)
g and e are the inputs of the first layer of decoder and encoder: words with their positions. Keys are words in their
context, values add the word itself.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Call, Frame, Linear, Memory, Out, Part, PartSpec, Site, Tap, fork, memory_of
from anyformer.errors import SpecError
from anyformer.ops.attention.source_attention import Source, blend, product_flops, shares


@dataclass(frozen=True, kw_only=True)
class MultiStepAttention(PartSpec, kind="multi_step_attention"):
    """ConvS2S's attention, whose queries include their word and whose values add the source's; for `cross`."""

    sources = ("memory",)
    needs_inputs = True

    def build(self, site: Site) -> "MultiStepAttentionPart":
        if site.memory_dim not in (None, site.dim):
            rule = f"needs an encoder as wide as the decoder, not {site.memory_dim} and {site.dim}"
            raise SpecError(f"multi_step_attention {rule}.")
        if site.stream_dim not in (None, site.dim):
            raise SpecError(
                f"multi_step_attention adds token vectors as wide as the stream, {site.stream_dim}, to queries of "
                f"width {site.dim}. Place it where nothing narrows the stream."
            )
        return MultiStepAttentionPart(site)


class MultiStepAttentionPart(Part):
    def __init__(self, site: Site):
        super().__init__()
        self.query = Linear(site.dim, site.dim, role="query", bias=True)
        self.pattern = Tap()

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> Source:
        return fork(self._source(memory))  # a state is written in place, the encoder's output must not be

    def forward(self, x: Tensor, frame: Frame, state: Source | None = None) -> Out:
        keys, values, valid = state or self._source(frame.memory)
        inputs = frame.place.inputs if frame.place else None
        q = self.query(x) if inputs is None else self.query(x) + inputs
        weights = self.pattern(shares(torch.bmm(q, keys.mT), frame, valid))  # [b t s]
        return Out(blend(weights, values), state)

    def _source(self, memory: Memory | None) -> Source:
        memory = memory_of(memory, "multi_step_attention")
        return Source(memory.x, memory.x if memory.inputs is None else memory.x + memory.inputs, memory.mask())

    def core_flops(self, call: Call) -> tuple[int, int]:
        width = 2 * self.query.widths[0]  # scores and weighted sum
        return product_flops(call.batch, call.length, call.source, width, keys_learn=call.memory_learns)
