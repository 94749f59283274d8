"""FlexAttention on CUDA: the mask rule as a block mask, cached by rule, lengths and device."""

import operator
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from anyformer.core.frame import Marks
from anyformer.core.masks import rule_from
from anyformer.core.part import Bias
from anyformer.ops.attention.call import AttentionCall
from anyformer.ops.devices import constant_in_graphs

_LEAST_LENGTH = 128
_MOST_GRAPHS = 64
"""Graphs compiled outside a compiled model. Each takes seconds; further cases use SDPA with a dense mask."""
_MASKS: dict[str, BlockMask] = {}
"""Block masks by name. A compiled graph can read an object from here, but cannot hold one as a constant."""
_GRAPHS: dict[Hashable, Any] = {}
"""Compiled FlexAttention by case."""
_LARGE = 1 << 26
"""Pairs of tokens from which on a dense mask costs more than compiling a graph."""


def prefers_flex(q: Tensor, k: Tensor, call: AttentionCall, bias: Bias | None) -> bool:
    """True for a sparse static rule or a bias over enough tokens, inside a graph or if compiling one pays."""
    if call.valid is not None or min(q.shape[1], k.shape[1]) < _LEAST_LENGTH:
        return False
    if not (call.is_sparse() or (bias is not None and call.plain and call.rule.static)):
        return False
    if torch.compiler.is_compiling():
        return True
    # training repeats its shapes; prompts have all lengths
    pays = torch.is_grad_enabled() or q.shape[1] * k.shape[1] >= _LARGE
    return _case(q, k, call, bias) in _GRAPHS or (pays and len(_GRAPHS) < _MOST_GRAPHS)


def attend_flex(q: Tensor, k: Tensor, v: Tensor, call: AttentionCall, scale: float, bias: Bias | None) -> Tensor:
    """Attention [b t h c] through a cached block mask."""
    run = flex_attention if torch.compiler.is_compiling() else _graph(_case(q, k, call, bias))
    mask = block_mask(call.rule.text, q, k)
    score_mod, grouped = None if bias is None else bias.score_mod, q.shape[2] != k.shape[2]
    heads = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    y: Tensor = run(*heads, score_mod, mask, scale, grouped)
    return y.transpose(1, 2)


def block_mask(rule_text: str, q: Tensor, k: Tensor) -> BlockMask:
    """The rule with this text as a block mask; built once for a rule, its lengths and a device."""
    lengths = operator.index(q.shape[1]), operator.index(k.shape[1])  # ints even to dynamo
    return _MASKS[_prepare(rule_text, *lengths, str(q.device))]


@constant_in_graphs
def _prepare(rule_text: str, q_len: int, k_len: int, device: str) -> str:
    """Builds the mask if it is not cached; returns its name."""
    name = f"{rule_text}/{q_len}/{k_len}/{device}"
    if name not in _MASKS:
        rule = rule_from(rule_text)

        def mask_mod(_b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return rule.allows(Marks(q), Marks(k))

        _MASKS[name] = create_block_mask(mask_mod, None, None, q_len, k_len, device=device)
    return name


def _case(q: Tensor, k: Tensor, call: AttentionCall, bias: Bias | None) -> Hashable:
    """The cache key of a compiled graph: rule, shapes and kind of bias."""
    return call.rule.text, q.shape, k.shape, bias and getattr(bias.score_mod, "__code__", None)


def _graph(case: Hashable) -> Any:
    """A compiled function for each case: torch recompiles one function only a few times, then falls back to eager."""

    def attend(*arguments: Any) -> Any:
        return flex_attention(*arguments)

    if case not in _GRAPHS:
        attend.__code__ = attend.__code__.replace()  # torch identifies a function by its code object
        _GRAPHS[case] = torch.compile(attend, dynamic=False)
    return _GRAPHS[case]
