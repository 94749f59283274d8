"""Attention with any scores to an encoder's output, for scores that are not a scaled dot product of heads.

c_t = sum_i a_{ti} v_i ,  a_t = softmax_i(e_{ti})
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from anyformer.core.frame import Frame
from anyformer.ops.devices import at_least_float32


class Source(NamedTuple):
    """Keys and values of the source, projected once and then kept as the state."""

    keys: Float[Tensor, "b s n"]
    values: Float[Tensor, "b s m"]
    valid: Bool[Tensor, "b s"]


def shares(scores: Float[Tensor, "b t s"], frame: Frame, valid: Bool[Tensor, "b s"]) -> Float[Tensor, "b t s"]:
    """Attention weights of each token over the source; packed tokens only see the source of their own segment."""
    seen = valid[:, None]
    if frame.memory is not None and frame.memory.segments is not None and frame.segments is not None:
        seen = seen & (frame.memory.segments[:, None] == frame.segments[:, :, None])
    logits = scores.to(at_least_float32(scores))
    weights = logits.masked_fill(~seen, torch.finfo(logits.dtype).min).softmax(-1)
    return weights.masked_fill(~seen, 0.0).to(scores.dtype)  # softmax would make a row without keys uniform


def blend(weights: Float[Tensor, "b t s"], values: Float[Tensor, "b s m"]) -> Float[Tensor, "b t m"]:
    """The weighted sum of the source's values."""
    return torch.bmm(weights, values)


def product_flops(batch: int, length: int, tokens: int, width: int, *, keys_learn: bool) -> tuple[int, int]:
    """FLOPs (forward, backward) of one product of every token with every token of the source."""
    forward = 2 * batch * length * tokens * width
    return forward, forward * (2 if keys_learn else 1)
