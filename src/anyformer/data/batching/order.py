"""The order of samples: a pure function of (seed, epoch, position), so that no shuffled list is stored or shared.

A Feistel network is a bijection on 2^(2h) numbers: (l, r) -> (r, l xor f(r, key)). Numbers that land outside 0..n-1
are sent through again until they land inside (cycle walking), which keeps it a bijection on 0..n-1.
Black and Rogaway, "Ciphers with arbitrary finite domains", 2002.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
ROUNDS = 6


class LoaderPosition(NamedTuple):
    """A position in the data: with the seed, all that a run has to remember about them."""

    epoch: int = 0
    window: int = 0
    """Window of the epoch."""
    unit: int = 0
    """Unit of the window: a row, a bucket batch, or a batch of a stream."""


def mix(*numbers: int) -> int:
    """A 64-bit key out of several numbers (splitmix64's finaliser); small changes give an unrelated key."""
    state = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        for number in numbers:
            state = _scramble(state ^ np.uint64(number & 0xFFFFFFFFFFFFFFFF))
    return int(state)


def permute(places: Integers, size: int, key: int) -> Integers:
    """Where each of 0..size-1 goes: different places, different results."""
    half = np.uint64(max(1, (max(size - 1, 1).bit_length() + 1) // 2))
    keys = [np.uint64(mix(key, turn)) for turn in range(ROUNDS)]
    permuted = _feistel(places.astype(np.uint64), half, keys)
    outside = np.flatnonzero(permuted >= size)
    while outside.size:
        permuted[outside] = _feistel(permuted[outside], half, keys)
        outside = outside[permuted[outside] >= size]
    return permuted.astype(np.int64)


def shuffled(size: int, key: int) -> Integers:
    """0..size-1 in another order."""
    return permute(np.arange(size, dtype=np.int64), size, key)


def _feistel(numbers: NDArray[np.uint64], half: np.uint64, keys: list[np.uint64]) -> NDArray[np.uint64]:
    low = np.uint64((1 << int(half)) - 1)
    left, right = numbers >> half, numbers & low
    for key in keys:
        left, right = right, left ^ (_scramble(right ^ key) & low)
    return (left << half) | right


def _scramble(x: Any) -> Any:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True)
class Order:
    """The samples of all epochs, cut into windows inside which batches are planned."""

    samples: int
    seed: int
    window: int
    """Samples of a window; the last one of an epoch has what is left."""
    shuffle: bool = True
    """False: as they are stored, in every epoch."""

    @property
    def windows(self) -> int:
        """Windows of an epoch."""
        return -(-self.samples // self.window)

    def key(self, epoch: int, *more: int) -> int:
        """The key from which all randomness of an epoch is derived."""
        return mix(self.seed, epoch, *more)

    def samples_of(self, epoch: int, window: int) -> Integers:
        """The samples of a window, in order."""
        places = np.arange(window * self.window, min((window + 1) * self.window, self.samples), dtype=np.int64)
        return permute(places, self.samples, self.key(epoch)) if self.shuffle else places

    def arrange(self, items: int, epoch: int, window: int) -> Integers:
        """A random order of the rows or batches of a window."""
        return shuffled(items, self.key(epoch, window, 1)) if self.shuffle else np.arange(items, dtype=np.int64)
