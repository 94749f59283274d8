"""FlexAttention on CUDA: the same mask rule as a block mask, kept for every rule and length that came by."""

import operator
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from anyformer.core.frame import Marks
from anyformer.core.masks import enter, entered
from anyformer.core.positions import Bias
from anyformer.ops.attention.call import AttentionCall
from anyformer.ops.graph_constants import constant_in_graphs

_LEAST_LENGTH = 128
_MOST_GRAPHS = 64
"""Outside of graphs of others. Each takes seconds to make; what comes after these has its mask written out."""
_MASKS: dict[str, BlockMask] = {}
"""What was prepared. A graph may read an object from here, but cannot hold one as a constant."""
_GRAPHS: dict[Hashable, Any] = {}
"""What was compiled for a case."""
_LARGE = 1 << 26
"""Pairs of tokens whose mask is no longer written out if it need not be."""


def worth_flex(q: Tensor, k: Tensor, sight: AttentionCall, bias: Bias | None) -> bool:
    """A sparse static rule, or a bias that need not be written out, over enough tokens; in a graph, or worth one."""
    if sight.valid is not None or min(q.shape[1], k.shape[1]) < _LEAST_LENGTH:
        return False
    if not (sight.is_sparse() or (bias is not None and sight.plain and sight.rule.static)):
        return False
    if torch.compiler.is_compiling():
        return True
    # what learns comes again in the same shape; prompts come in all lengths
    pays = torch.is_grad_enabled() or q.shape[1] * k.shape[1] >= _LARGE
    return _case(q, k, sight, bias) in _GRAPHS or (pays and len(_GRAPHS) < _MOST_GRAPHS)


def attend_flex(q: Tensor, k: Tensor, v: Tensor, sight: AttentionCall, scale: float, bias: Bias | None) -> Tensor:
    """[b t h c] attention through a prepared block mask."""
    run = flex_attention if torch.compiler.is_compiling() else _graph(_case(q, k, sight, bias))
    mask = block_mask(sight.key or enter(sight.rule), q, k)
    score_mod, shared_keys = None if bias is None else bias.score_mod, q.shape[2] != k.shape[2]
    heads = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    y: Tensor = run(*heads, score_mod, mask, scale, shared_keys)
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


def _case(q: Tensor, k: Tensor, sight: AttentionCall, bias: Bias | None) -> Hashable:
    """What a graph is made for: a rule, shapes and a kind of bias."""
    return sight.key or enter(sight.rule), q.shape, k.shape, bias and getattr(bias.score_mod, "__code__", None)


def _graph(case: Hashable) -> Any:
    """By a function of its own: of one, torch makes a few graphs, and then goes on without, all scores written out."""

    def attend(*given: Any) -> Any:
        return flex_attention(*given)

    if case not in _GRAPHS:
        attend.__code__ = attend.__code__.replace()  # by the code, torch tells one function from the next
        _GRAPHS[case] = torch.compile(attend, dynamic=False)
    return _GRAPHS[case]
