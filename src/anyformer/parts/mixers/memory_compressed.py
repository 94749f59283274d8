"""Memory-compressed attention: the keys and values of every few tokens become one, so that there are fewer scores.

k'_j = C_k [k_sj .. k_sj+s-1] ;  v'_j = C_v [v_sj .. v_sj+s-1] ;  head = softmax(q k'^T / sqrt(c)) v'
                                                                                    (arXiv 1801.10198, section 4.2.3)
A convolution whose kernel is as long as its stride s. A query sees the blocks that end before it or with it, so blocks
need no mask inside. As in the authors' code, the first token of a document is a key of its own, uncompressed and seen
by all: without it the queries before the end of the first block would see nothing.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anyformer.core import Call, Chance, Count, Linear, Out, Part, PartSpec, Site, Tap
from anyformer.core.frame import Frame, Marks, Memory, RaggedCursor
from anyformer.core.masks import Causal
from anyformer.errors import SpecError
from anyformer.ops.attention.attend import Taps, attend
from anyformer.ops.attention.call import Keys, KeyValueCache
from anyformer.ops.padding import take


@dataclass(frozen=True, kw_only=True)
class MemoryCompressed(PartSpec, kind="memory_compressed"):
    """Causal attention to blocks of tokens: a strided convolution makes one key and one value of each block."""

    perspective = "efficiency"
    causal_only = True

    heads: Count = 4
    """Number of heads."""
    stride: Count = 3
    """Tokens of a block: kernel and stride of the convolution."""
    dropout: Chance = 0.0
    """Dropout on the attention weights."""

    def build(self, site: Site) -> "MemoryCompressedPart":
        return MemoryCompressedPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[MemoryCompressed, ...]":
        return cls(), cls(stride=1)


class CompressedCache(NamedTuple):
    """Compressed keys and values, and the tokens that may belong to a block that is not complete yet."""

    blocks: KeyValueCache
    """The first token, then the blocks in order."""
    k: Float[Tensor, "b recent d"]
    v: Float[Tensor, "b recent d"]
    positions: Int[Tensor, "b recent"]
    """-1: empty; empty slots come first."""


class Blocks(NamedTuple):
    """Where the tokens of each new key are: a complete block, or the first token of a document."""

    columns: Int[Tensor, "b n s"]
    ends: Int[Tensor, "b n"]
    """Position of the last token of a block."""
    segments: Int[Tensor, "b n"] | None
    ready: Bool[Tensor, "b n"]
    """False: there are fewer keys in this row."""


class MemoryCompressedPart(Part):
    def __init__(self, spec: MemoryCompressed, site: Site):
        super().__init__()
        self.h, self.c, self.stride = spec.heads, site.head_width(spec.heads), spec.stride
        self.firsts = 0 if spec.stride == 1 else 1  # blocks of one token are complete at once
        self.rule, self.scale, self.dropout = Causal(), self.c**-0.5, spec.dropout
        self.qkv = Linear(site.dim, (site.dim,) * 3, role=("query", "key", "value"), heads=self.h)
        self.compress_k = Linear(self.stride * site.dim, site.dim, role="key")
        self.compress_v = Linear(self.stride * site.dim, site.dim, role="value")
        self.out = Linear(site.dim, site.dim, role="out")
        self.pattern = Tap()

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> CompressedCache:
        blocks = KeyValueCache.empty(batch, max_len // self.stride + self.firsts, self.h, self.c, self.out.weight)
        k = self.out.weight.new_zeros(batch, self.stride - 1, self.h * self.c)
        return CompressedCache(blocks, k, torch.zeros_like(k), torch.full_like(k[..., 0], -1, dtype=torch.long))

    def forward(self, x: Tensor, frame: Frame, state: CompressedCache | None = None) -> Out:
        q, k, v = self.qkv(x).chunk(3, dim=-1)  # [b t d]
        if state is not None:
            keys, state = self._append(k, v, frame, state)
        elif frame.plain and frame.valid is None:
            keys = self._plain_keys(k, v)
        else:
            keys = self._keys(k, v, frame.marks_for(x), frame.valid)
        q, dropout = q.unflatten(-1, (self.h, self.c)), self.dropout if self.training else 0.0
        y = attend(
            q, frame.marks_for(x), keys, rule=self.rule, scale=self.scale, taps=Taps(self.pattern), dropout=dropout
        )
        return Out(self.out(y.flatten(2)), state)

    def _plain_keys(self, k: Tensor, v: Tensor) -> Keys:
        """Keys of tokens at positions 0..t-1: blocks lie side by side. No query sees the rest, which fills no block."""
        blocks, stride = k.shape[1] // self.stride, self.stride
        slots = torch.arange(blocks + self.firsts, device=k.device)[None]
        k_blocks, v_blocks = (y[:, : blocks * stride].unflatten(1, (blocks, stride)).flatten(2) for y in (k, v))
        k = torch.cat((k[:, : self.firsts], self.compress_k(k_blocks)), dim=1)
        v = torch.cat((v[:, : self.firsts], self.compress_v(v_blocks)), dim=1)
        return Keys(self._heads(k), self._heads(v), Marks(self._ends(slots)))

    def _keys(self, k: Tensor, v: Tensor, marks: Marks, valid: Tensor | None) -> Keys:
        """Keys of rows with padding or several documents, in which blocks begin anywhere."""
        position = marks.position.expand(k.shape[:2])
        position = position if valid is None else position.where(valid, -1)
        # each document has a first token, so that packed rows may have as many keys as tokens
        most = k.shape[1] // self.stride + self.firsts if marks.segment is None else k.shape[1]
        blocks, _ = self._find_blocks(position, marks.segment, most)
        return Keys(*self._compress(k, v, blocks), Marks(blocks.ends, blocks.segments), blocks.ready)

    def _append(self, k: Tensor, v: Tensor, frame: Frame, state: CompressedCache) -> tuple[Keys, CompressedCache]:
        """Keys of all blocks so far, and the next state."""
        if frame.positions is None or frame.segments is not None:
            raise SpecError("a state takes one document a row: set frame.positions, and no frame.segments.")
        recent, stride = self.stride - 1, self.stride
        position = frame.positions if frame.valid is None else frame.positions.where(frame.valid, -1)
        position = torch.cat((state.positions, position), dim=1)
        k, v = torch.cat((state.k.type_as(k), k), dim=1), torch.cat((state.v.type_as(v), v), dim=1)
        blocks, order = self._find_blocks(position, None, k.shape[1] // stride + self.firsts, past=recent)
        slots = torch.where(self._is_first(blocks.ends), 0, blocks.ends // stride + self.firsts)
        inner = Frame(positions=slots, valid=blocks.ready, layout=RaggedCursor(state.blocks.max_len))
        keys = state.blocks.append(*self._compress(k, v, blocks), inner)
        last = order[:, order.shape[1] - recent :]
        k, v = (take(y, last).to(state.k.dtype) for y in (k, v))
        keys = keys._replace(marks=Marks(self._ends(keys.marks.position)))
        return keys, CompressedCache(state.blocks, k, v, position.gather(1, last))

    def _find_blocks(self, position: Tensor, segment: Tensor | None, most: int, past: int = 0) -> tuple[Blocks, Tensor]:
        """The blocks that are complete, and first tokens, among tokens [b t] of which the first `past` were seen
        before; at most `most` of them. A position of -1 is padding. Also returns the order in which tokens were read,
        padding first."""
        stride, before = self.stride, (self.stride - 1, 0)
        order = (position >= 0).byte().argsort(dim=1, stable=True)
        position = position.gather(1, order)
        start = F.pad(position, before, value=-1)[:, : position.shape[1]]  # of the token at the start of a block
        key = (position % stride == stride - 1) & (position - start == stride - 1) & (position >= 0)
        if segment is not None:
            segment = segment.gather(1, order)
            key = key & (segment == F.pad(segment, before)[:, : segment.shape[1]])
        key = (key | self._is_first(position)) & (order >= past)
        places = (~key).byte().argsort(dim=1, stable=True)[:, :most]  # keys come first, in order
        window = places[..., None] - torch.arange(stride - 1, -1, -1, device=position.device)
        columns = order.gather(1, window.clamp(min=0).flatten(1)).unflatten(1, (-1, stride))
        segments = None if segment is None else segment.gather(1, places)
        return Blocks(columns, position.gather(1, places), segments, key.gather(1, places)), order

    def _compress(self, k: Tensor, v: Tensor, blocks: Blocks) -> tuple[Tensor, Tensor]:
        """Keys and values [b n h c] of blocks of tokens [b t d]."""
        first, pairs = self._is_first(blocks.ends)[..., None], ((k, self.compress_k), (v, self.compress_v))
        results = []
        for y, compress in pairs:
            tokens = take(y, blocks.columns.flatten(1)).unflatten(1, (-1, self.stride))  # [b n s d]
            results.append(self._heads(torch.where(first, tokens[:, :, -1], compress(tokens.flatten(2)))))
        return results[0], results[1]

    def _is_first(self, position: Tensor) -> Tensor:
        return (position == 0) & (self.firsts > 0)

    def _ends(self, slots: Tensor) -> Tensor:
        """Positions at which the keys of these slots end: of the first token, then of the blocks in order."""
        ends: Tensor = (slots + 1 - self.firsts) * self.stride - 1
        return ends.clamp(min=0)

    def _heads(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (self.h, self.c))
        return heads

    def core_flops(self, call: Call) -> tuple[int, int]:
        tokens = call.past + call.length
        keys = tokens // self.stride + self.firsts
        # Every `stride` tokens there is a key more, so that each of `stride` queries in a row begins a causal triangle.
        # All triangles end with all keys if the next block lacks one token: queries after the last are taken off again.
        end = (tokens // self.stride + 1) * self.stride - 1
        queries = (len(range(first, end, self.stride)) for first in range(call.past, call.past + self.stride))
        pairs = sum(self.rule.pairs(number, keys) for number in queries) - (end - tokens) * keys
        products = 4 * call.batch * self.h * self.c * pairs  # a score and a weighted value in every head
        return products, 2 * products
