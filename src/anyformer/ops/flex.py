"""FlexAttention on CUDA: the same mask rule as a block mask, kept for every rule and length that came by."""

import operator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from anyformer.core.frame import Marks
from anyformer.core.masks import enter, entered
from anyformer.core.positions import Bias
from anyformer.ops.constants import constant_in_graphs
from anyformer.ops.sight import Sight

_LEAST_LENGTH = 128
_MASKS: dict[str, BlockMask] = {}
"""What was prepared. A graph may read an object from here, but cannot hold one as a constant."""


def worth_flex(q: Tensor, k: Tensor, sight: Sight, bias: Bias | None) -> bool:
    """A sparse static rule, or a bias that need not be written out, over enough tokens."""
    if sight.valid is not None or min(q.shape[1], k.shape[1]) < _LEAST_LENGTH:
        return False
    return sight.is_sparse() or (bias is not None and sight.plain and sight.rule.static)


def attend_flex(q: Tensor, k: Tensor, v: Tensor, sight: Sight, scale: float, bias: Bias | None) -> Tensor:
    """[b t h c] attention through a prepared block mask."""
    key, score_mod = sight.key or enter(sight.rule), None if bias is None else bias.score_mod
    if torch.compiler.is_compiling():
        run = flex_attention
    else:
        run = _compiled(key, q.shape, k.shape, getattr(score_mod, "__code__", None))
    y = run(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        score_mod=score_mod,
        block_mask=block_mask(key, q, k),
        scale=scale,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return y.transpose(1, 2)


def block_mask(key: str, q: Tensor, k: Tensor) -> BlockMask:
    """The rule under this key as a block mask; built once for a rule, its lengths and a device."""
    lengths = operator.index(q.shape[1]), operator.index(k.shape[1])  # ints even to dynamo
    return _MASKS[_prepare(key, *lengths, str(q.device))]


@constant_in_graphs
def _prepare(key: str, q_len: int, k_len: int, device: str) -> str:
    """Makes sure that the mask is there; gives its name."""
    name = f"{key}/{q_len}/{k_len}/{device}"
    if name not in _MASKS:
        rule = entered(key)

        def mask_mod(_b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return rule.allows(Marks(q), Marks(k))

        _MASKS[name] = create_block_mask(mask_mod, None, None, q_len, k_len, device=device)
    return name


@cache
def _compiled(*of: Any) -> Any:
    """A function for every rule, shape and kind of bias: of one, torch makes a few graphs, and then goes on without,
    with all scores written out."""

    def attend(q: Tensor, k: Tensor, v: Tensor, **told: Any) -> Any:
        return flex_attention(q, k, v, **told)

    attend.__code__ = attend.__code__.replace()  # by the code, torch tells one function from the next
    return torch.compile(attend, dynamic=False)
