"""Attention in recurrent or cached decoding: of one new token to its cache, and with any scores to an encoder's output.

`attend_step` writes a new key and value to their slot and attends to all slots up to it, in one GPU kernel that reads
what is filled, not what is allocated. `attend_step_loop` is the definition; the kernel is `decode_attention_kernel`.
For scores that are not a scaled dot product of heads: c_t = sum_i a_{ti} v_i ,  a_t = softmax_i(e_{ti}).
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anyformer.core.frame import Frame
from anyformer.ops.devices import TRITON, at_least_float32, supports_triton
from anyformer.ops.operators import operator

if TRITON:
    from anyformer.ops.kernels.decode_attention_kernel import launch

_MOST_CHANNELS = 256
_SCHEMA = (
    "attend_step(Tensor heads, Tensor(a!) keys, Tensor(b!) values, Tensor(c!) filled, Tensor positions, float scale)"
    " -> Tensor"
)


def supports_step(q: Float[Tensor, "b t h c"], keys: Float[Tensor, "b s g c"]) -> bool:
    """True: there is one token a row, and the device, the dtypes and the head size suit the kernel."""
    channels = q.shape[3]
    fits = q.shape[1] == 1 and q.dtype == keys.dtype and channels <= _MOST_CHANNELS and channels & (channels - 1) == 0
    return fits and supports_triton(q)


def _shape(heads: Tensor, keys: Tensor, values: Tensor, filled: Tensor, positions: Tensor, scale: float) -> Tensor:
    rows, both, channels = heads.shape
    return heads.new_empty(rows, both - 2 * keys.shape[2], channels)


@operator(_SCHEMA, _shape)
def attend_step(heads: Tensor, keys: Tensor, values: Tensor, filled: Tensor, positions: Tensor, scale: float) -> Tensor:
    """y [b h c] of the tokens at positions [b], whose heads [b h+2g c] are queries, a key and a value for each group.

    Keys and values are written to the cache [b s g c]. All three come in one tensor, as one projection computes them:
    a compiler would copy three slices of it.
    """
    with torch.cuda.device_of(heads):
        return launch(heads, (keys, values, filled), positions, scale)


def attend_step_loop(
    heads: Float[Tensor, "b both c"],
    cache: tuple[Float[Tensor, "b s g c"], Float[Tensor, "b s g c"], Bool[Tensor, "b s"]],
    positions: Int[Tensor, " b"],
    scale: float,
) -> Float[Tensor, "b h c"]:
    """The definition, row by row and head by head."""
    (keys, values, filled), groups = cache, cache[0].shape[2]
    q, k, v = heads.split_with_sizes((heads.shape[1] - 2 * groups, groups, groups), dim=1)
    group, y = q.shape[1] // groups, torch.empty_like(q)
    for row, at in enumerate(positions.tolist()):
        keys[row, at], values[row, at], filled[row, at] = k[row], v[row], True
        for head in range(q.shape[1]):
            seen = keys[row, : at + 1, head // group], values[row, : at + 1, head // group]
            y[row, head] = (scale * seen[0] @ q[row, head]).softmax(0) @ seen[1]
    return y


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
