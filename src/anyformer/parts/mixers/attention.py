"""Multi-head softmax attention, to the tokens themselves or to an encoder's.

head_h = softmax(scale Q_h K_h^T + bias) V_h ;  y = [head_1 .. head_H] W_o      (arXiv 1706.03762, eq. 1)
With fewer key/value heads than query heads, groups of queries share one (arXiv 2305.13245).
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from anyformer.core import (
    Bias,
    Call,
    Causal,
    Chance,
    Count,
    Frame,
    Full,
    Heads,
    Linear,
    Marks,
    MaskRule,
    Memory,
    Out,
    Part,
    PartSpec,
    Position,
    PositionSpec,
    Positive,
    Segment,
    Site,
    Tap,
)
from anyformer.core.masks import enter
from anyformer.errors import SpecError, at
from anyformer.ops.attention.attend import attend, average, weigh
from anyformer.ops.attention.call import AttentionCall
from anyformer.ops.attention.decode_attention import attend_step, worth_stepping

_EVERYTHING = Full()


@dataclass(frozen=True, kw_only=True)
class Attention(PartSpec, kind="attention"):
    """Multi-head softmax attention: self, causal or cross, with grouped key/value heads."""

    sources = ("self", "memory")

    heads: Count = 4
    """Query heads."""
    kv_heads: Count | None = None
    """Key/value heads, each shared by a group of query heads; as many as `heads` if not given."""
    head_dim: Count | None = None
    """Channels per head; dim / heads if not given."""
    scale: Positive | None = None
    """Factor on the scores; 1 / sqrt(head_dim) if not given, 1.0 for unscaled attention."""
    bias: bool = False
    """Adds a learned bias to the projections."""
    mask: MaskRule | None = None
    """Who may look at whom; a causal site adds `causal` to it. Everybody, or the past, if not given."""
    position: PositionSpec | None = None
    """A scheme that acts inside attention: rope, alibi, t5_bias, shaw, xl."""
    dropout: Chance = 0.0
    """Dropout on the attention weights."""

    def check(self) -> None:
        if self.kv_heads and self.heads % self.kv_heads:
            fitting = ", ".join(str(g) for g in range(1, self.heads + 1) if self.heads % g == 0)
            raise SpecError(f"heads={self.heads} must be a multiple of kv_heads={self.kv_heads}. Use {fitting}.")

    def build(self, site: Site) -> "AttentionPart":
        if self.head_dim is None and site.dim % self.heads:
            raise SpecError(f"heads={self.heads} must divide dim={site.dim}; or give head_dim.")
        if site.source == "memory" and self.position is not None:
            raise SpecError("cross-attention compares two sequences; it takes no `position`.")
        if site.source == "memory" and self.mask not in (None, Full()):
            raise SpecError("cross-attention sees the whole source; it takes no `mask`.")
        return AttentionPart(self, site)

    def rule(self, site: Site) -> MaskRule:
        """The mask rule at this place: what was asked for, and never the future of a causal stack."""
        mask = self.mask or Full()
        return mask.in_causal() if site.causal and site.source == "self" else mask


class KeyValues(NamedTuple):
    """Slot = position; the last slot takes what padding writes. `filled`: which slots hold a token."""

    k: Tensor
    v: Tensor
    filled: Tensor


class CrossKeyValues(NamedTuple):
    """The encoder's keys and values, projected once."""

    k: Tensor
    v: Tensor
    valid: Tensor


class AttentionPart(Part):
    def __init__(self, spec: Attention, site: Site):
        super().__init__()
        self.h, self.g = spec.heads, spec.kv_heads or spec.heads
        self.c = spec.head_dim or site.dim // spec.heads
        self.scale = spec.scale or self.c**-0.5
        self.rule, self.dropout, self.cross = spec.rule(site), spec.dropout, site.source == "memory"
        self.packed_rule, self.key = self.rule & Segment(), enter(self.rule)
        queries, keys = self.h * self.c, self.g * self.c
        if self.cross:
            self.q = Linear(site.dim, queries, role="query", bias=spec.bias, heads=self.h)
            self.kv = Linear(site.memory_dim or site.dim, (keys, keys), role=("key", "value"), bias=spec.bias)
        else:
            widths = (queries, keys, keys)
            self.qkv = Linear(site.dim, widths, role=("query", "key", "value"), bias=spec.bias, heads=self.h)
        self.out = Linear(queries, site.dim, role="out", bias=spec.bias)
        heads = Heads(self.h, self.c, self.scale, self.g if self.g != self.h else None)
        with at("position"):
            self.position = spec.position.build(site, heads) if spec.position else Position()
            if self.position.enters() and not self.position.acts_inside():
                kind = spec.position.kind if spec.position else ""
                raise SpecError(f"{kind} acts on token vectors: make it the `position` of the model, or wrap the part.")
        self.plain_scores = type(self.position).bias is Position.bias and not self.position.has_values
        self.turns = type(self.position).turn is not Position.turn
        self.pattern, self.queries, self.keys = Tap(), Tap(), Tap()

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> KeyValues | CrossKeyValues:
        if self.cross:
            keys = self._project_memory(memory)
            return keys._replace(valid=keys.valid.clone())  # a state is written in place, the encoder's mask is not
        self.position.check_length(max_len)
        empty = self.out.weight.new_zeros(batch, max_len + 1, self.g, self.c)
        filled = torch.zeros(batch, max_len + 1, dtype=torch.bool, device=empty.device)
        return KeyValues(empty, torch.zeros_like(empty), filled)

    def forward(self, x: Tensor, frame: Frame, state: KeyValues | CrossKeyValues | None = None) -> Out:
        if self.cross:
            return self._forward_cross(x, frame, state)
        heads = self.qkv(x).view(*x.shape[:2], self.h + 2 * self.g, self.c)
        q, k, v = heads.split_with_sizes((self.h, self.g, self.g), dim=2)  # [b t h c], [b t g c]
        marks = frame.marks(x)
        q, k = self.position.turn(q, marks.position), self.position.turn(k, marks.position)
        if isinstance(state, KeyValues):
            if self._steps(q, frame, state):
                heads = torch.cat((q, k, v), dim=2) if self.turns else heads
                return Out(self._step(heads, frame, state), state)
            end = self._store(k, v, frame, state)
            k, v = state.k.narrow(1, 0, end), state.v.narrow(1, 0, end)
            sight = self._sight_into(state, marks, frame, end)
        else:
            rule = self.rule if frame.segments is None else self.packed_rule
            sight = AttentionCall(rule, marks, marks, frame.valid, frame.plain, self.key, frame.documents)
            return Out(self._mix(q, k, v, sight, None if self.turns else heads), state)
        return Out(self._mix(q, k, v, sight), state)

    def _forward_cross(self, x: Tensor, frame: Frame, state: KeyValues | CrossKeyValues | None) -> Out:
        keys = state if isinstance(state, CrossKeyValues) else self._project_memory(frame.memory)
        q = self.q(x).unflatten(-1, (self.h, self.c))
        marks = Marks(torch.arange(keys.k.shape[1], device=x.device)[None])
        memory, rule = frame.memory if state is None else None, self.rule
        if memory is not None and memory.segments is not None and frame.segments is not None:
            marks, rule = Marks(marks.position, memory.segments), self.packed_rule
        all_valid = memory is not None and memory.valid is None
        sight = AttentionCall(rule, frame.marks(x), marks, None if all_valid else keys.valid)
        return Out(self._mix(q, keys.k, keys.v, sight), state)

    def _steps(self, q: Tensor, frame: Frame, state: KeyValues) -> bool:
        """One token behind all that is there, and nothing but scores and values."""
        plain = isinstance(self.rule, Causal) and self.plain_scores and not self.pattern.wanted
        return frame.dense and plain and worth_stepping(q, state.k)

    def _step(self, heads: Tensor, frame: Frame, state: KeyValues) -> Tensor:
        assert frame.positions is not None
        y = attend_step(heads[:, 0], *state, frame.positions[:, 0], self.scale)
        return self.out(y.flatten(1)[:, None])

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, sight: AttentionCall, heads: Tensor | None = None) -> Tensor:
        bias = self.position.bias(q, k, sight.q, sight.k)
        if self.pattern.wanted or self.position.has_values:
            y = self._mix_in_view(q, k, v, sight, bias)
        else:
            dropout = self.dropout if self.training else 0.0
            y = attend(q, k, v, sight, scale=self.scale, bias=bias, dropout=dropout, heads=heads)
        return self.out(y.flatten(2))

    def _mix_in_view(self, q: Tensor, k: Tensor, v: Tensor, sight: AttentionCall, bias: Bias | None) -> Tensor:
        q, k = self.queries(q * self.scale), self.keys(k)
        weights = self.pattern(weigh(q, k, sight, scale=1.0, bias=bias))  # [b h t s]
        weights = torch.dropout(weights, self.dropout, self.training)
        y, extra = average(weights, v), self.position.values(weights, sight.q, sight.k)
        return y if extra is None else y + extra

    def _project_memory(self, memory: Memory | None) -> CrossKeyValues:
        if memory is None:
            raise SpecError("cross-attention needs the encoder's output: put it in frame.memory.")
        k, v = self.kv(memory.x).unflatten(-1, (2 * self.g, self.c)).chunk(2, dim=2)  # [b s g c]
        valid = memory.valid
        return CrossKeyValues(k, v, torch.ones_like(memory.x[..., 0], dtype=torch.bool) if valid is None else valid)

    def _store(self, k: Tensor, v: Tensor, frame: Frame, state: KeyValues) -> int:
        """Gives the number of slots that may hold something."""
        if frame.past is not None:
            return self._append(k, v, frame, state)
        return self._place(k, v, frame, state) if frame.dense else self._remember(k, v, frame, state)

    def _append(self, k: Tensor, v: Tensor, frame: Frame, state: KeyValues) -> int:
        """Behind what is there, for all rows at the same place."""
        assert frame.past is not None
        new = k.shape[1]
        state.k.narrow(1, frame.past, new).copy_(k)
        state.v.narrow(1, frame.past, new).copy_(v)
        state.filled.narrow(1, frame.past, new).fill_(True)
        return frame.past + new

    def _place(self, k: Tensor, v: Tensor, frame: Frame, state: KeyValues) -> int:
        """The same, where only the tensor of positions says which place it is."""
        assert frame.positions is not None
        if frame.alike:
            slots = frame.positions[0]
            state.k.index_copy_(1, slots, k.to(state.k.dtype))
            state.v.index_copy_(1, slots, v.to(state.v.dtype))
            state.filled.index_fill_(1, slots, True)
        else:
            self._write(k, v, frame.positions, state)
        return min(frame.reach or state.k.shape[1], state.k.shape[1] - 1)

    def _remember(self, k: Tensor, v: Tensor, frame: Frame, state: KeyValues) -> int:
        """Each token in the slot of its position."""
        if frame.positions is None or frame.segments is not None:
            raise SpecError("a state takes one document a row, with frame.positions that say where its tokens stand.")
        dump = state.k.shape[1] - 1
        fits = (frame.positions >= 0) & (frame.positions < dump)
        slots = frame.positions.where(fits if frame.valid is None else fits & frame.valid, dump)
        self._write(k, v, slots, state)
        return dump if frame.reach is None else min(frame.reach, dump)

    def _write(self, k: Tensor, v: Tensor, slots: Tensor, state: KeyValues) -> None:
        rows = torch.arange(k.shape[0], device=k.device)[:, None]
        state.k[rows, slots] = k.to(state.k.dtype)
        state.v[rows, slots] = v.to(state.v.dtype)
        state.filled[rows, slots] = torch.ones_like(slots, dtype=torch.bool)  # a bare True would come from the host

    def _sight_into(self, state: KeyValues, marks: Marks, frame: Frame, end: int) -> AttentionCall:
        slots = Marks(torch.arange(end, device=state.k.device)[None])
        last = marks.position.shape[1] == 1 and isinstance(self.rule, Causal)  # one token behind all others
        if frame.past is None:
            filled = slots.position <= marks.position[:, -1:] if frame.dense else state.filled[:, :end]
            return AttentionCall(_EVERYTHING if last and frame.dense else self.rule, marks, slots, filled)
        return AttentionCall(_EVERYTHING if last else self.rule, marks, slots, plain=frame.past == 0, key=self.key)

    def core_flops(self, call: Call) -> int:
        return self._pair_flops(call) + self.position.head_flops(call, self._keys(call))[0]

    def core_flops_backward(self, call: Call) -> int:
        return 2 * self._pair_flops(call) + self.position.head_flops(call, self._keys(call))[1]

    def _keys(self, call: Call) -> int:
        return call.source if self.cross else call.past + call.length

    def _pair_flops(self, call: Call) -> int:
        return 4 * call.batch * self.h * self.c * self.rule.pairs(call.length, self._keys(call))
