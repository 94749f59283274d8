"""Multi-head softmax attention, to the tokens themselves or to an encoder's.

head_h = softmax(scale Q_h K_h^T + bias) V_h ;  y = [head_1 .. head_H] W_o      (arXiv 1706.03762, eq. 1)
Query heads can share key/value heads (arXiv 2305.13245). A norm of queries and keys bounds scores (arXiv 2010.04245).
"""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from anyformer.core import Call, Chance, Count, Linear, Norm, NormSpec, Out, Part, PartSpec, Positive, Site, Tap, Units
from anyformer.core.frame import Frame, Marks, Memory, memory_of
from anyformer.core.masks import Full, MaskRule
from anyformer.core.part import Heads, Position, PositionSpec
from anyformer.errors import SpecError
from anyformer.ops.attention.attend import Taps, attend
from anyformer.ops.attention.call import Keys, KeyValueCache, NewKeys, SourceKeyValues


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
    """Which tokens see each other; a causal site adds `causal`. All tokens, or the past, if not given."""
    position: PositionSpec | None = None
    """A scheme inside attention: rope, alibi, t5_bias, bucketed_keys, shaw, xl, relative_segments or in_heads."""
    qk_norm: NormSpec | None = None
    """Normalises queries and keys over the channels of each head, before their positions."""
    dropout: Chance = 0.0
    """Dropout on the attention weights."""

    def check(self) -> None:
        if self.kv_heads and self.heads % self.kv_heads:
            divisors = ", ".join(str(g) for g in range(1, self.heads + 1) if self.heads % g == 0)
            raise SpecError(f"heads={self.heads} must be a multiple of kv_heads={self.kv_heads}. Use {divisors}.")
        if self.qk_norm is not None and self.qk_norm.limits:
            raise SpecError(f"qk_norm: {self.qk_norm.kind} depends on other tokens. Use rms, layer or scale.")

    def sizes(self, site: Site) -> dict[str, Any]:
        channels = self.head_dim or site.dim // self.heads
        return {"head_dim": channels, "kv_heads": self.kv_heads or self.heads, "scale": self.scale or channels**-0.5}

    def build(self, site: Site) -> "AttentionPart":
        if self.head_dim is None:
            site.head_width(self.heads, ", or give head_dim")  # raises SpecError unless heads divide dim
        if site.source == "memory" and (self.position is not None or self.mask not in (None, Full())):
            raise SpecError("cross-attention sees all of another sequence; it takes no `position` and no `mask`.")
        return AttentionPart(self, site)

    def rule(self, site: Site) -> MaskRule:
        """The mask rule at this site: `mask`, without the future in a causal stack."""
        mask = self.mask or Full()
        return mask.in_causal() if site.causal and site.source == "self" else mask


class AttentionPart(Part):
    divided = ("h", "g", "pair_flops")

    def __init__(self, spec: Attention, site: Site):
        super().__init__()
        sizes = spec.sizes(site)
        self.h, self.g, self.c, self.scale = spec.heads, sizes["kv_heads"], sizes["head_dim"], sizes["scale"]
        # query heads that share keys are removed together
        self.removable = Units("heads", self.g, {"heads": self.h // self.g, "kv_heads": 1}, {"head_dim": self.c})
        self.rule, self.dropout, self.cross = spec.rule(site), spec.dropout, site.source == "memory"
        queries, keys = self.h * self.c, self.g * self.c
        self.pair_flops = 4 * queries  # a score and a weighted value in every head
        if self.cross:
            self.q = Linear(site.dim, queries, role="query", bias=spec.bias, heads=self.h)
            self.kv = Linear(site.memory_dim or site.dim, (keys, keys), role=("key", "value"), bias=spec.bias)
        else:
            widths = (queries, keys, keys)
            self.qkv = Linear(site.dim, widths, role=("query", "key", "value"), bias=spec.bias, heads=self.h)
        head = replace(site, dim=self.c)
        self.q_norm, self.k_norm = (spec.qk_norm.build(head) if spec.qk_norm else None for _ in range(2))
        self.out = Linear(queries, site.dim, role="out", bias=spec.bias)
        heads = Heads(self.h, self.c, self.scale, self.g if self.g != self.h else None)
        self.position = spec.position.build_inside(site, heads) if spec.position else Position()
        self.pattern, self.queries, self.keys = Tap(), Tap(), Tap()

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> KeyValueCache | SourceKeyValues:
        if self.cross:
            source = self._project_source(memory)
            return source._replace(valid=source.valid.clone())  # a state is written in place, the encoder's mask is not
        self.position.check_length(max_len)
        return KeyValueCache.empty(batch, max_len, self.g, self.c, self.out.weight)

    def forward(self, x: Tensor, frame: Frame, state: KeyValueCache | SourceKeyValues | None = None) -> Out:
        if self.cross:
            return self._attend_to_source(x, frame, state)
        qkv = self.qkv(x).view(*x.shape[:2], self.h + 2 * self.g, self.c)
        q, k, v = qkv.split_with_sizes((self.h, self.g, self.g), dim=2)  # [b t h c], [b t g c], [b t g c]
        marks = frame.marks_for(x)
        q = self.position.rotate(_normalised(q, self.q_norm), marks.position)
        k = self.position.rotate(_normalised(k, self.k_norm), marks.position)
        fused = None if self.position.rotates or self.q_norm else qkv  # one tensor: faster with some kernels
        if isinstance(state, KeyValueCache):
            return Out(self._attend(q, marks, NewKeys(state, k, v, frame, fused)), state)
        keys = Keys(k, v, marks, frame.valid, frame.plain, documents=frame.document_bounds, fused=fused)
        return Out(self._attend(q, marks, keys), state)

    def _attend_to_source(self, x: Tensor, frame: Frame, state: KeyValueCache | SourceKeyValues | None) -> Out:
        source = state if isinstance(state, SourceKeyValues) else self._project_source(frame.memory)
        keys = source.keys(frame.memory if state is None else None)
        q = self.q(x).unflatten(-1, (self.h, self.c))  # [b t h c]
        return Out(self._attend(_normalised(q, self.q_norm), frame.marks_for(x), keys), state)

    def _attend(self, q: Tensor, marks: Marks, keys: Keys | NewKeys) -> Tensor:
        taps, dropout = Taps(self.pattern, self.queries, self.keys), self.dropout if self.training else 0.0
        y = attend(q, marks, keys, rule=self.rule, scale=self.scale, taps=taps, position=self.position, dropout=dropout)
        return self.out(y.flatten(2))

    def _project_source(self, memory: Memory | None) -> SourceKeyValues:
        memory = memory_of(memory, "cross-attention")
        k, v = self.kv(memory.x).unflatten(-1, (2 * self.g, self.c)).chunk(2, dim=2)  # [b s g c]
        return SourceKeyValues(_normalised(k, self.k_norm), v, memory.mask())

    def core_flops(self, call: Call) -> tuple[int, int]:
        keys = call.source if self.cross else call.past + call.length
        products = call.batch * self.pair_flops * self.rule.pairs(call.length, keys)
        forward, backward = self.position.head_flops(call, keys)
        return products + forward, 2 * products + backward


def _normalised(x: Tensor, norm: Norm | None) -> Tensor:
    return x if norm is None else norm(x, Frame())  # of each token alone
