"""Every random number of a run is a function of (seed, step, purpose), so an exact resume needs no stored RNG state."""

from enum import IntEnum

import torch

from anyformer.data.batching.order import mix


class Purpose(IntEnum):
    """The use of random numbers. The value is part of the derived seed and must never change."""

    PREPARE = 1
    DROPOUT = 2
    LOSS = 3
    EVALUATE = 4
    SAMPLE = 5


def derive(seed: int, step: int, purpose: Purpose, *more: int) -> int:
    """The seed for one purpose at one step."""
    return mix(seed, step, purpose, *more) >> 1  # torch takes 63 bits


def generator(seed: int, step: int, purpose: Purpose, *more: int) -> torch.Generator:
    """A CPU generator for one purpose at one step."""
    return torch.Generator().manual_seed(derive(seed, step, purpose, *more))


def reseed(device: torch.device, seed: int, step: int, purpose: Purpose, *more: int) -> None:
    """Seeds torch's default generators of the CPU and of this device, which dropout uses. `torch.manual_seed` also
    seeds all other device types, which takes a millisecond."""
    value = derive(seed, step, purpose, *more)
    torch.default_generator.manual_seed(value)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(value)
