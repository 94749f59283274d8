"""Every random number of a run is a function of (seed, step, purpose): nothing has to be stored to go on exactly."""

from enum import IntEnum

import torch

from anyformer.data.batching.order import mix


class Purpose(IntEnum):
    """What the numbers are for; the value is part of their seed and never changes."""

    PREPARE = 1
    DROPOUT = 2
    LOSS = 3
    EVALUATE = 4
    SAMPLE = 5


def derive(seed: int, step: int, purpose: Purpose, *more: int) -> int:
    """The seed of one use."""
    return mix(seed, step, purpose, *more) >> 1  # torch takes 63 bits


def generator(seed: int, step: int, purpose: Purpose, *more: int) -> torch.Generator:
    """A stream of its own, on the CPU."""
    return torch.Generator().manual_seed(derive(seed, step, purpose, *more))


def reseed(device: torch.device, seed: int, step: int, purpose: Purpose, *more: int) -> None:
    """Sets torch's own streams, from which dropout draws: it takes no generator. Those of the host and of this device:
    `torch.manual_seed` also writes down, for every other kind of device, who asked for it, which takes a millisecond.
    """
    value = derive(seed, step, purpose, *more)
    torch.default_generator.manual_seed(value)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(value)
