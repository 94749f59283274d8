"""The first of the largest scores of each row on a GPU, as `argmax` has it, but with many processors to a row.

`likeliest_loop` is the definition, the kernels are in `likeliest_kernel`. Not a number counts as the largest of all.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anyformer.ops.triton_support import TRITON_INSTALLED, runs_triton

if TRITON_INSTALLED:
    from anyformer.ops.kernels.argmax_kernel import launch
else:
    launch = None  # type: ignore[assignment]

_KINDS = (torch.bfloat16, torch.float16, torch.float32)
_FEWEST_WORDS, _MOST_WORDS = 1024, 1 << 22


def worth_likeliest(scores: Float[Tensor, "b v"]) -> bool:
    """Many words to choose from, on a GPU with Triton."""
    fits = scores.dtype in _KINDS and _FEWEST_WORDS <= scores.shape[1] <= _MOST_WORDS
    return fits and runs_triton(scores.device)


@torch.library.custom_op("anyformer::likeliest_word", mutates_args=())
def likeliest_word(scores: Tensor) -> Tensor:
    """Of scores [b v] that lie row by row or word by word; any others are copied."""
    assert launch is not None
    with torch.cuda.device_of(scores):
        return launch(scores)


@likeliest_word.register_fake
def _(scores: Tensor) -> Tensor:
    return scores.new_empty(scores.shape[0], dtype=torch.long)


def likeliest_loop(scores: Float[Tensor, "b v"]) -> Int[Tensor, " b"]:
    """The definition, word by word."""
    most, best = scores[:, 0], torch.zeros(len(scores), dtype=torch.long, device=scores.device)
    for word, score in enumerate(scores.unbind(1)):
        larger = (score > most) | (score.isnan() & ~most.isnan())
        most, best = score.where(larger, most), best.masked_fill(larger, word)
    return best
