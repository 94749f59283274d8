"""Weighted attention: each head goes through the feed-forward net alone, and the heads are added with learned weights.

head_h = softmax(scale Q_h K_h^T + bias) V_h W_o,h ;  y = sum_h alpha_h FFN(kappa_h head_h)        (arXiv 1711.02132)
FFN(z) = W_2 phi(W_1 z + b_1) + b_2 is one net for all heads. kappa and alpha are >= 0 and each add up to 1: they are a
softmax of free parameters, 1 / heads at the start, so that any optimiser keeps them there. The part stands for
attention and for the feed-forward net after it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Call, Chance, Count, Linear, Out, Part, PartSpec, Positive, Site, Tap, param
from anyformer.core.frame import Frame, Memory, memory_of
from anyformer.core.masks import Causal, Full
from anyformer.core.part import Heads, Position, PositionSpec
from anyformer.errors import SpecError
from anyformer.ops.activations import ACTIVATION_FUNCTIONS, Activation
from anyformer.ops.attention.attend import Taps, attend
from anyformer.ops.attention.call import Keys, KeyValueCache, NewKeys, SourceKeyValues


@dataclass(frozen=True, kw_only=True)
class WeightedAttention(PartSpec, kind="weighted_attention"):
    """Attention and feed-forward net in one: every head passes the net alone, then heads are added with weights."""

    sources = ("self", "memory")

    heads: Count = 4
    """Number of heads, each a branch with weights of its own."""
    head_dim: Count | None = None
    """Channels per head; dim / heads if not given."""
    scale: Positive | None = None
    """Factor on the scores; 1 / sqrt(head_dim) if not given."""
    position: PositionSpec | None = None
    """A scheme inside attention: rope, alibi, t5_bias, bucketed_keys, shaw, xl, relative_segments or in_heads."""
    hidden: Count | None = None
    """Hidden width of the feed-forward net; 4 dim if not given."""
    activation: Activation = "relu"
    """Activation of the hidden values."""
    bias: bool = False
    """Adds a learned bias to both matrices of the feed-forward net."""
    dropout: Chance = 0.0
    """Dropout on the attention weights and on the hidden values."""

    def build(self, site: Site) -> "WeightedAttentionPart":
        if site.source == "memory" and self.position is not None:
            raise SpecError("cross-attention sees all of another sequence; it takes no `position`.")
        return WeightedAttentionPart(self, site)


class WeightedAttentionPart(Part):
    def __init__(self, spec: WeightedAttention, site: Site):
        super().__init__()
        self.h, self.c = spec.heads, spec.head_dim or site.head_width(spec.heads, ", or give head_dim")
        self.scale, self.dropout = spec.scale or self.c**-0.5, spec.dropout
        self.cross = site.source == "memory"
        self.rule = Causal() if site.causal and not self.cross else Full()
        inner, hidden = self.h * self.c, spec.hidden or 4 * site.dim
        self.pair_flops = 4 * inner  # a score and a weighted value in every head
        self.q = Linear(site.dim, inner, role="query", heads=self.h)
        keys_from = site.memory_dim or site.dim if self.cross else site.dim
        self.kv = Linear(keys_from, (inner, inner), role=("key", "value"))
        self.out = param((site.dim, inner), "out")
        self.up = Linear(site.dim, hidden, role="in", bias=spec.bias)
        self.down = Linear(hidden, site.dim, role="out", bias=spec.bias)
        self.kappa, self.alpha = param((self.h,), "scalar"), param((self.h,), "scalar")
        self.activation = ACTIVATION_FUNCTIONS[spec.activation]
        heads = Heads(self.h, self.c, self.scale)
        self.position = spec.position.build_inside(site, heads) if spec.position else Position()
        self.pattern, self.branches = Tap(), Tap()

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> KeyValueCache | SourceKeyValues:
        if self.cross:
            source = self._project_source(memory)
            return source._replace(valid=source.valid.clone())  # a state is written in place, the encoder's mask is not
        self.position.check_length(max_len)
        return KeyValueCache.empty(batch, max_len, self.h, self.c, self.out)

    def forward(self, x: Tensor, frame: Frame, state: KeyValueCache | SourceKeyValues | None = None) -> Out:
        marks, dropout = frame.marks_for(x), self.dropout if self.training else 0.0
        q = self.position.rotate(self.q(x).unflatten(-1, (self.h, self.c)), marks.position)  # [b t h c]
        keys = self._source_keys(frame, state) if self.cross else self._keys(x, frame, state)
        taps = Taps(self.pattern)
        y = attend(q, marks, keys, rule=self.rule, scale=self.scale, taps=taps, position=self.position, dropout=dropout)
        return Out(self._add_branches(y), state)

    def branch_weights(self) -> tuple[Tensor, Tensor]:
        """The weights of the heads [h] before and after the feed-forward net: kappa and alpha."""
        return self.kappa.softmax(0), self.alpha.softmax(0)

    def _add_branches(self, heads: Tensor) -> Tensor:
        """Heads [b t h c] -> [b t d]."""
        kappa, alpha = (weights[:, None].type_as(heads) for weights in self.branch_weights())
        out = self.out.unflatten(1, (self.h, self.c)).permute(1, 2, 0)  # [h c d]
        branches = torch.bmm((kappa * heads).flatten(0, 1).transpose(0, 1), out)  # [h b*t d]
        branches = branches.transpose(0, 1).unflatten(0, heads.shape[:2])  # [b t h d]
        hidden = torch.dropout(self.activation(self.up(branches)), self.dropout, self.training)  # [b t h f]
        return (alpha * self.branches(self.down(hidden))).sum(2)

    def _keys(self, x: Tensor, frame: Frame, state: KeyValueCache | SourceKeyValues | None) -> Keys | NewKeys:
        k, v = self.kv(x).unflatten(-1, (2 * self.h, self.c)).chunk(2, dim=2)  # [b t h c]
        marks = frame.marks_for(x)
        k = self.position.rotate(k, marks.position)
        if isinstance(state, KeyValueCache):
            return NewKeys(state, k, v, frame)
        return Keys(k, v, marks, frame.valid, frame.plain, documents=frame.document_bounds)

    def _source_keys(self, frame: Frame, state: KeyValueCache | SourceKeyValues | None) -> Keys:
        source = state if isinstance(state, SourceKeyValues) else self._project_source(frame.memory)
        return source.keys(frame.memory if state is None else None)

    def _project_source(self, memory: Memory | None) -> SourceKeyValues:
        memory = memory_of(memory, "cross-attention")
        k, v = self.kv(memory.x).unflatten(-1, (2 * self.h, self.c)).chunk(2, dim=2)  # [b s h c]
        return SourceKeyValues(k, v, memory.mask())

    def core_flops(self, call: Call) -> tuple[int, int]:
        keys = call.source if self.cross else call.past + call.length
        scores = call.batch * self.pair_flops * self.rule.pairs(call.length, keys)
        projections = 2 * call.batch * call.length * self.out.numel()
        forward, backward = self.position.head_flops(call, keys)
        return scores + projections + forward, 2 * (scores + projections) + backward
