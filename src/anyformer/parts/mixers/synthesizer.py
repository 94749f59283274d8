"""Synthesizers: attention whose scores come from each token alone or from a learned table, not from pairs of tokens.

head_h = softmax(S_h) V_h ;  y = [head_1 .. head_H] W_o                                           (arXiv 2005.00743)
dense S_h = ReLU(Q_h) W_pi, W_pi of size c x L for all heads; random S_h = R_h of size L x L; factorized_random
S_h = R1_h^T R2_h, both of size rank x L. L is the model's max_len: t tokens use the first t rows and columns.
With dot products: softmax(scale Q_h K_h^T + S_h), or softmax((1 - a) scale Q_h K_h^T + a S_h), a = sigmoid(alpha).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Call, Chance, Count, Linear, Out, Part, PartSpec, Positive, Role, Site, Table, Tap, param
from anyformer.core.frame import Frame, Marks, Memory
from anyformer.core.masks import Causal, Full
from anyformer.core.part import Bias, Heads, Position
from anyformer.ops.attention.attend import Taps, attend
from anyformer.ops.attention.call import (
    AttentionCall,
    Keys,
    KeyValueCache,
    NewKeys,
    attention_weights,
    weighted_sum,
)
from anyformer.parts.positions.t5_bias import T5Bias


@dataclass(frozen=True, kw_only=True)
class Synthesizer(PartSpec, kind="synthesizer"):
    """Attention with scores from each token alone or from a learned table, with or without dot products."""

    perspective = "efficiency"
    limits: ClassVar[Mapping[str, str]] = {"length": "the scores end at max_len"}

    heads: Count = 4
    """Number of heads."""
    head_dim: Count | None = None
    """Channels per head; dim / heads if not given."""
    scores: Literal["dense", "random", "factorized_random"] = "dense"
    """Scores from the token alone; from a learned table; from a learned table of low rank."""
    rank: Count = 16
    """Rank of each head's table, for factorized_random."""
    combine: Literal["alone", "plus", "plus_alpha"] = "alone"
    """Use of dot products of queries and keys. alone: none; plus: they are added to the scores; plus_alpha: they are
    averaged with the scores, with a learned weight."""
    scale: Positive | None = None
    """Factor on the dot products; 1 / sqrt(head_dim) if not given."""
    position: T5Bias | None = None
    """A bias for each distance, added to the scores."""
    dropout: Chance = 0.0
    """Dropout on the attention weights."""

    def build(self, site: Site) -> "SynthesizerPart":
        return SynthesizerPart(self, site)

    @property
    def projections(self) -> tuple[Role, ...]:
        """What a token is projected to: keys only for dot products, queries also for dense scores, values always."""
        if self.combine != "alone":
            return "query", "key", "value"
        return ("query", "value") if self.scores == "dense" else ("value",)

    @classmethod
    def examples(cls) -> "tuple[Synthesizer, ...]":
        plus = cls(scores="random", combine="plus", position=T5Bias())
        averaged = tuple(cls(scores=scores, combine="plus_alpha") for scores in ("dense", "factorized_random"))
        return cls(), cls(scores="random"), cls(scores="factorized_random", rank=4), plus, *averaged


class SyntheticScores(Position):
    """Scores that do not depend on keys, as a bias of attention. Abstract: there are three ways to compute them."""

    def __init__(self, spec: Synthesizer, site: Site, heads: Heads):
        super().__init__()
        self.longest, self.h = site.max_len, heads.number
        self.alpha = param((), "scalar") if spec.combine == "plus_alpha" else None
        self.relative = spec.position.build(site, heads) if spec.position else None

    def synthesize(self, q: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Scores [#b h t s] of queries [b t h c] at the positions `rows` [#b t], for keys at `columns` [#b s]."""
        raise NotImplementedError

    def weigh_keys(self, k: Tensor) -> Tensor:
        """Keys multiplied by 1 - a, which multiplies their dot products by it."""
        return k if self.alpha is None else k * torch.sigmoid(-self.alpha)

    def bias(self, q: Tensor, k: Tensor, q_marks: Marks, k_marks: Marks) -> Bias:
        scores = self.synthesize(q, q_marks.position, k_marks.position).type_as(q)
        scores = scores if self.alpha is None else scores * torch.sigmoid(self.alpha)
        relative = None if self.relative is None else self.relative.bias(q, k, q_marks, k_marks)
        batch = scores.shape[0]

        def dense() -> Tensor:
            return scores if relative is None else scores + relative.dense()

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            score = score + scores[b % batch, h, i, j]  # a batch of 1 serves all rows
            return score if relative is None else relative.score_mod(score, b, h, i, j)

        return Bias(dense, score_mod)


class DenseScores(SyntheticScores):
    def __init__(self, spec: Synthesizer, site: Site, heads: Heads):
        super().__init__(spec, site, heads)
        self.pi = Linear(heads.channels, site.max_len, role="key")

    def synthesize(self, q: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        return _select_columns(self.pi(F.relu(q)).transpose(1, 2), columns)


class RandomScores(SyntheticScores):
    def __init__(self, spec: Synthesizer, site: Site, heads: Heads):
        super().__init__(spec, site, heads)
        self.table = Table(site.max_len, self.h * site.max_len, role="position")

    def synthesize(self, q: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        return _select_columns(self.table(rows).unflatten(-1, (self.h, -1)).transpose(1, 2), columns)


class FactorizedRandomScores(SyntheticScores):
    def __init__(self, spec: Synthesizer, site: Site, heads: Heads):
        super().__init__(spec, site, heads)
        self.rank = spec.rank
        self.row_table, self.column_table = (Table(site.max_len, self.h * spec.rank, role="position") for _ in range(2))

    def synthesize(self, q: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        tables = self.row_table(rows), self.column_table(columns)
        return torch.einsum("bthr,bshr->bhts", *(table.unflatten(-1, (self.h, -1)) for table in tables))

    def head_flops(self, call: Call, keys: int) -> tuple[int, int]:
        batch = call.batch if call.past else 1  # without a past all rows have the same positions, hence the same scores
        forward = 2 * batch * call.length * keys * self.h * self.rank
        return forward, 2 * forward


SCORES = {"dense": DenseScores, "random": RandomScores, "factorized_random": FactorizedRandomScores}


class SynthesizerPart(Part):
    def __init__(self, spec: Synthesizer, site: Site):
        super().__init__()
        self.h, self.c = spec.heads, spec.head_dim or site.head_width(spec.heads, ", or give head_dim")
        self.scale, self.dropout = spec.scale or self.c**-0.5, spec.dropout
        self.rule, self.has_keys = Causal() if site.causal else Full(), "key" in spec.projections
        # a weighted value in every head, and a dot product where there are keys
        self.pair_flops = (4 if self.has_keys else 2) * self.h * self.c
        widths = (self.h * self.c,) * len(spec.projections)
        self.project = Linear(site.dim, widths, role=spec.projections, heads=self.h)
        self.scores = SCORES[spec.scores](spec, site, Heads(self.h, self.c, self.scale))
        self.out = Linear(self.h * self.c, site.dim, role="out")
        self.pattern = Tap()

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> KeyValueCache:
        self.scores.check_length(max_len)
        cache = KeyValueCache.empty(batch, max_len, self.h, self.c, self.out.weight)
        return cache if self.has_keys else cache._replace(k=cache.k.new_zeros(*cache.k.shape[:3], 0))

    def forward(self, x: Tensor, frame: Frame, state: KeyValueCache | None = None) -> Out:
        self.scores.check_length(x.shape[1])
        *inputs, v = self.project(x).unflatten(-1, (-1, self.h, self.c)).unbind(2)  # [b t h c]
        empty = v.new_empty(*v.shape[:3], 0)  # without channels: dot products are 0 and cost nothing
        q = inputs[0] if inputs else empty
        k = self.scores.weigh_keys(inputs[1]) if self.has_keys else empty
        marks = frame.marks_for(x)
        keys = Keys(k, v, marks, frame.valid, frame.plain) if state is None else NewKeys(state, k, v, frame)
        return Out(self.out(self._attend(q, marks, keys).flatten(2)), state)

    def _attend(self, q: Tensor, marks: Marks, keys: Keys | NewKeys) -> Tensor:
        rule, taps, dropout = self.rule, Taps(self.pattern), self.dropout if self.training else 0.0
        if self.has_keys:
            return attend(q, marks, keys, rule=rule, scale=self.scale, taps=taps, position=self.scores, dropout=dropout)
        if isinstance(keys, NewKeys):
            keys = keys.cache.append(keys.k, keys.v, keys.frame)
        bias = self.scores.bias(q, keys.k, marks, keys.marks)
        call = AttentionCall(rule, marks, keys.marks, keys.valid, keys.plain)
        # the dot products are 0 in every row, and one row of them is enough: weights may be the same in all rows
        weights = attention_weights(q.detach()[:1, ..., :0], keys.k[:1], call, scale=1.0, bias=bias)  # [#b h t s]
        if self.pattern.captured or dropout:
            weights = torch.dropout(self.pattern(weights.expand(q.shape[0], -1, -1, -1)), dropout, train=True)
        return weighted_sum(weights, keys.v)

    def core_flops(self, call: Call) -> tuple[int, int]:
        keys = call.past + call.length
        products = call.batch * self.pair_flops * self.rule.pairs(call.length, keys)
        forward, backward = self.scores.head_flops(call, keys)
        return products + forward, 2 * products + backward


def _select_columns(scores: Tensor, columns: Tensor) -> Tensor:
    """Scores [#b h t L] of all positions -> [#b h t s] of the keys at these positions [#b s]."""
    return scores.gather(-1, columns[:, None, None].expand(*scores.shape[:3], -1))
