"""argmax over the vocabulary on a GPU, with many thread blocks for each row; torch's uses one.

`argmax_loop` is the definition, the kernels are in `argmax_kernel`. Of equal scores the first wins; NaN is the largest.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anyformer.ops.devices import TRITON, supports_triton
from anyformer.ops.operators import operator

if TRITON:
    from anyformer.ops.kernels.argmax_kernel import launch

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_FEWEST_WORDS, _MOST_WORDS = 1024, 1 << 22


def argmax(scores: Float[Tensor, "b v"]) -> Int[Tensor, " b"]:
    """The index of the largest score of each row, the first of equals."""
    best: Tensor = argmax_gpu(scores) if supports_argmax(scores) else scores.argmax(-1)
    return best


def supports_argmax(scores: Float[Tensor, "b v"]) -> bool:
    """True for a large vocabulary on an NVIDIA GPU with Triton."""
    fits = scores.dtype in _DTYPES and _FEWEST_WORDS <= scores.shape[1] <= _MOST_WORDS
    return fits and supports_triton(scores)


def _shape(scores: Tensor) -> Tensor:
    return scores.new_empty(scores.shape[0], dtype=torch.long)


@operator("argmax(Tensor scores) -> Tensor", _shape)
def argmax_gpu(scores: Tensor) -> Tensor:
    """The index of the largest score of each row [b v], in row-major or column-major memory; others are copied."""
    with torch.cuda.device_of(scores):
        return launch(scores)


def argmax_loop(scores: Float[Tensor, "b v"]) -> Int[Tensor, " b"]:
    """The definition, word by word."""
    largest, best = scores[:, 0], torch.zeros(len(scores), dtype=torch.long, device=scores.device)
    for word, score in enumerate(scores.unbind(1)):
        larger = (score > largest) | (score.isnan() & ~largest.isnan())
        largest, best = score.where(larger, largest), best.masked_fill(larger, word)
    return best
