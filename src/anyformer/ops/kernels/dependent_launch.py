"""Kernels that begin while the one before them still runs: what takes a microsecond is over before the next has begun.

Such a kernel says at once that whatever follows may begin too, and waits for the one before it as soon as it needs what
that one makes. Before it waits it may read what is learned, which must not have been written by that one, and write
nothing.
"""

from functools import cache

import torch

from anyformer.ops.triton_support import runs_triton

try:
    from triton.language.extra.cuda import (  # type: ignore[import-not-found, unused-ignore]
        gdc_launch_dependents,
        gdc_wait,
    )
except ImportError:  # no Triton, or one for other GPUs
    gdc_launch_dependents = gdc_wait = None

EARLY = True


def begins_early(device: torch.device) -> bool:
    """On GPUs of NVIDIA's since Hopper."""
    return EARLY and gdc_wait is not None and runs_triton(device) and _is_able(device)


@cache
def _is_able(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)
