"""Attention under a sparse rule that skips forbidden blocks: by gathered blocks on a CPU, by flash attention on a GPU.

On a CPU queries are cut into blocks; each block gathers only the key blocks that its rule allows, and blocks that need
equally many run together in one fused call. Exact for every static rule; the cost falls with the share of blocks.
"""

import operator
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anyformer.core.frame import DocumentBounds, Marks
from anyformer.core.masks import Band, MaskRule, rule_from
from anyformer.ops.attention.call import AttentionCall
from anyformer.ops.devices import constant_in_graphs
from anyformer.ops.padding import cut

_LEAST_LENGTH = 256
_MOST_DENSITY = 0.5
_MOST_PADDING = 0.05

Row = tuple[int, tuple[int, ...]]
"""A query block and the key blocks that it needs."""


class BlockGroup(NamedTuple):
    """Query blocks that gather equally many key blocks."""

    queries: Int[Tensor, " m"]
    keys: Int[Tensor, "m n"]
    """Shorter rows are padded with block 0, which the mask hides."""
    mask: Bool[Tensor, "m q k"]


class BlockPlan(NamedTuple):
    """The key blocks that each query block gathers, for one rule and one length."""

    groups: tuple[BlockGroup, ...]
    back: Int[Tensor, " blocks"]
    """Index of each query block in the concatenated groups."""
    density: float
    """Share of all blocks that are gathered."""


def prefers_blocks(call: AttentionCall, length: int) -> bool:
    """True for a long enough call under a sparse enough rule."""
    # an exported graph reads every length, so it does not compare lengths
    if not call.is_sparse() or torch.compiler.is_exporting() or length < _LEAST_LENGTH:
        return False
    density: float = _plan_of(call, length).density
    return density <= _MOST_DENSITY


def attend_blocked(
    q: Float[Tensor, "b t h c"],
    k: Float[Tensor, "b t g c"],
    v: Float[Tensor, "b t g c"],
    call: AttentionCall,
    scale: float,
) -> Float[Tensor, "b t h c"]:
    """Attention over the blocks that the rule allows."""
    length, block = q.shape[1], _block(q.shape[1])
    blocks = _plan_of(call, length)  # read by name below: torch 2.11 cannot unpack a constant in a graph
    q, k, v = (cut(x, block) for x in (q, k, v))  # [b blocks block heads c]
    if len(blocks.groups) == 1:
        y = _attend_group(q, k, v, blocks.groups[0], call.valid, scale)
    else:
        outputs = [_attend_group(q.index_select(1, g.queries), k, v, g, call.valid, scale) for g in blocks.groups]
        y = torch.cat(outputs, dim=1).index_select(1, blocks.back)
    return y.flatten(1, 2)[:, :length]


def _attend_group(q: Tensor, k: Tensor, v: Tensor, group: BlockGroup, valid: Tensor | None, scale: float) -> Tensor:
    b, m, block, h, c = q.shape
    mask = group.mask[None]
    if valid is not None:
        exists = cut(valid, block)[:, group.keys].flatten(2)  # [b m n*block]
        mask = mask & exists[:, :, None]
    mask = mask.expand(b, -1, -1, -1).flatten(0, 1)[:, None]  # [bm 1 block n*block]
    at = group.keys.flatten()  # index_select: its backward adds whole slices
    k, v = (x.index_select(1, at).reshape(b * m, -1, *x.shape[3:]).transpose(1, 2) for x in (k, v))
    q = q.flatten(0, 1).transpose(1, 2)  # [bm h block c]
    y = F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    return y.transpose(1, 2).reshape(b, m, block, h, c)


def _block(length: int) -> int:
    return 64 if length < 2048 else 128


def _plan_of(call: AttentionCall, length: int) -> BlockPlan:
    blocks: BlockPlan = plan(call.rule.text, operator.index(length))  # an int even under dynamo
    return blocks


@constant_in_graphs
def plan(rule_text: str, length: int) -> BlockPlan:
    """The plan for the rule with this text. Counts are rounded up and small groups merged, so that there are few."""
    return _plan(rule_text, length)


@lru_cache(maxsize=32)
@torch.inference_mode(False)  # a cached plan must serve training too
def _plan(rule_text: str, length: int) -> BlockPlan:
    rule = rule_from(rule_text)
    block = _block(length)
    blocks = -(-length // block)
    by_count: dict[int, list[Row]] = {}
    for number in range(blocks):
        needed = _needed(rule, number, length, block)
        by_count.setdefault(min(_round_up(len(needed)), blocks), []).append((number, needed))
    merged = {count: sorted(rows) for count, rows in _merged(by_count).items()}
    order = torch.tensor([number for rows in merged.values() for number, _ in rows], device="cpu")
    gathered = sum(count * len(rows) for count, rows in merged.items())
    groups = tuple(_group(rule, count, rows, length, block) for count, rows in merged.items())
    return BlockPlan(groups, order.argsort(), gathered / blocks**2)


def _merged(by_count: dict[int, list[Row]]) -> dict[int, list[Row]]:
    """Merges groups into the next larger one where that adds little: each group costs its gathers and a call."""
    allowance = _MOST_PADDING * sum(count * len(rows) for count, rows in by_count.items())
    merged: dict[int, list[Row]] = {}
    counts = sorted(by_count)
    for count, larger in zip(counts, [*counts[1:], 0], strict=True):
        rows = merged.pop(count, []) + by_count[count]
        joins = 0 <= (larger - count) * len(rows) <= allowance
        merged.setdefault(larger if joins else count, []).extend(rows)
    return merged


def _group(rule: MaskRule, count: int, rows: list[Row], length: int, block: int) -> BlockGroup:
    padded = [needed + (-1,) * (count - len(needed)) for _, needed in rows]
    queries, keys = (torch.tensor(x, device="cpu") for x in ([number for number, _ in rows], padded))
    inside = torch.arange(block, device="cpu")
    q_at = queries[:, None] * block + inside  # [m block]
    k_at = (keys.clamp(min=0)[..., None] * block + inside).flatten(1)  # [m n*block]
    exists = (k_at < length) & (keys >= 0).repeat_interleave(block, dim=1)
    mask = rule.allows(Marks(q_at[..., None]), Marks(k_at[:, None])) & exists[:, None]
    return BlockGroup(queries, keys.clamp(min=0), mask)


def _needed(rule: MaskRule, number: int, length: int, block: int) -> tuple[int, ...]:
    start, stop = number * block, min(number * block + block, length)
    q_at, k_at = torch.arange(start, stop, device="cpu"), torch.arange(length, device="cpu")
    seen = rule.allows(Marks(q_at[:, None]), Marks(k_at[None])).expand(stop - start, length).any(0)
    return tuple(cut(seen[None], block)[0].any(1).nonzero()[:, 0].tolist()) or (0,)


def _round_up(count: int) -> int:
    """1, 2, 3, 4, 6, 8, 12, 16, 24, ...: at most a third of waste."""
    step = max(1, 1 << (count.bit_length() - 2)) if count > 2 else 1
    return -(-count // step) * step


_HALF = (torch.bfloat16, torch.float16)


def fits_flash(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """True: the kernel supports the device, the dtype and the memory layout."""
    if q.device.type != "cuda" or q.dtype not in _HALF or q.shape[-1] % 8 or q.shape[-1] > 256:
        return False
    uniform = all(x.dtype == q.dtype and x.stride(-1) == 1 for x in (q, k, v))
    return uniform and torch.version.hip is None and torch.cuda.get_device_capability(q.device)[0] >= 8


def flash_band(
    q: Float[Tensor, "*n h c"],
    k: Float[Tensor, "*n g c"],
    v: Float[Tensor, "*n g c"],
    band: Band,
    scale: float,
    documents: DocumentBounds | None = None,
) -> Float[Tensor, "*n h c"]:
    """Flash attention in rows [b t h c], or in concatenated documents [n h c], which skips what is outside the band.

    Groups of query heads may share a key head. `varlen_attn` calls the same kernel through Python, forward and
    backward, which takes longer than a short window; here autograd calls it from C++.
    """
    bounds, longest = (None, q.shape[1]) if documents is None else documents
    back, ahead = band.limits()
    attend = torch.ops.aten._flash_attention_forward.default
    lengths = (bounds, bounds, longest, longest)
    dropout, causal, debug_mask = 0.0, False, False  # window_size_right=0 is the causal form
    switches = (dropout, causal, debug_mask)
    y: Tensor = attend(q, k, v, *lengths, *switches, scale=scale, window_size_left=back, window_size_right=ahead)[0]
    return y
