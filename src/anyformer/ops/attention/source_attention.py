"""One look at an encoder's output: scores in any form, softmax over the tokens that are there, a weighted sum.

c_t = sum_i a_{ti} v_i ,  a_t = softmax_i(e_{ti})          for attention whose scores are no scaled product of heads
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from anyformer.core.frame import Frame, Memory
from anyformer.errors import SpecError
from anyformer.ops.dtypes import wide


class Source(NamedTuple):
    """What is looked at: projected once, then kept as the state."""

    keys: Float[Tensor, "b s n"]
    values: Float[Tensor, "b s m"]
    valid: Bool[Tensor, "b s"]


def memory_of(memory: Memory | None, who: str) -> Memory:
    """The encoder's output, which must be there."""
    if memory is None:
        raise SpecError(f"{who} needs the encoder's output: put it in frame.memory.")
    return memory


def source(keys: Float[Tensor, "b s n"], values: Float[Tensor, "b s m"], memory: Memory) -> Source:
    """With every token valid where nothing else is said."""
    valid = torch.ones_like(keys[..., 0], dtype=torch.bool) if memory.valid is None else memory.valid
    return Source(keys, values, valid)


def shares(scores: Float[Tensor, "b t s"], frame: Frame, valid: Bool[Tensor, "b s"]) -> Float[Tensor, "b t s"]:
    """How much each token takes from each of the source; a packed one only from the source of its own segment."""
    seen = valid[:, None]
    if frame.memory is not None and frame.memory.segments is not None and frame.segments is not None:
        seen = seen & (frame.memory.segments[:, None] == frame.segments[:, :, None])
    precise = scores.to(wide(scores))
    weights = precise.masked_fill(~seen, torch.finfo(precise.dtype).min).softmax(-1)
    return weights.masked_fill(~seen, 0.0).to(scores.dtype)  # who sees nothing gets zeros


def blend(weights: Float[Tensor, "b t s"], values: Float[Tensor, "b s m"]) -> Float[Tensor, "b t m"]:
    """The weighted sum."""
    return torch.bmm(weights, values)


def product_flops(batch: int, length: int, tokens: int, width: int, *, keys_learn: bool) -> tuple[int, int]:
    """(forward, backward) of one product of every token with every one of the source."""
    forward = 2 * batch * length * tokens * width
    return forward, forward * (2 if keys_learn else 1)
