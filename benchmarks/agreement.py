"""Do two ways to the same numbers agree? By the largest difference against the largest number."""

from collections.abc import Sequence

import torch
from torch import Tensor

EXACT, ROUGH, HALF = 1e-4, 1e-2, 2e-2
"""Single precision on a CPU; on a GPU, which may multiply it in tf32; and half precision anywhere."""


def agree(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    """Up to what the precision allows."""
    return all(_near(mine, other) for mine, other in zip(ours, theirs, strict=True))


def _near(mine: Tensor, other: Tensor) -> bool:
    single = EXACT if mine.device.type == "cpu" else ROUGH
    tolerance = single if mine.dtype == other.dtype == torch.float32 else HALF
    return bool((mine - other).abs().max() <= tolerance * other.abs().max())
