"""Programmatic dependent launch: a kernel starts its prologue while its predecessor still runs (Hopper and newer).

Such a kernel first allows its successor to start, and waits for its predecessor before it reads that one's output.
Before it waits it may only read weights, which the predecessor does not write, and must not write.
"""

from functools import cache

import torch

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait  # type: ignore[import-not-found, unused-ignore]
except ImportError:  # no Triton, or one for other GPUs
    gdc_launch_dependents = gdc_wait = None

EARLY = True


def begins_early(device: torch.device) -> bool:
    """True on NVIDIA GPUs since Hopper."""
    return EARLY and gdc_wait is not None and device.type == "cuda" and torch.version.hip is None and _is_able(device)


@cache
def _is_able(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)
