"""Pseudo-random numbers as a function of integers, without a generator: the same on every device."""

from jaxtyping import Int
from torch import Tensor

_BITS = (1 << 31) - 1  # products of two such numbers fit 64 bits, so nothing overflows on any device


def hash_bits(seed: int, index: Int[Tensor, "*n"], stream: int) -> Int[Tensor, "*n"]:
    """31 well mixed bits of three numbers; `index` must be int64."""
    bits = (index * 0x2545F491 + (stream * 0x19660D + seed * 0x5851F42D) % _BITS) & _BITS
    for factor in (0x2C1B3C6D, 0x297A2D39):
        bits = ((bits ^ (bits >> 15)) * factor) & _BITS
    return bits ^ (bits >> 16)


def pick_earlier(seed: int, index: Int[Tensor, "*n"], stretch: int, count: int) -> Int[Tensor, "*n"]:
    """One of the numbers 0 .. index - 1, drawn by a hash from one of the `count` equal stretches of them; -1 if there
    is none. `index` must be int64."""
    enough = index >= count  # with fewer numbers, a stretch is one of them; compilers like constant divisors
    start = (stretch * index // count).where(enough, stretch)
    stop = ((stretch + 1) * index // count).where(enough, stretch + 1)
    pick = start + hash_bits(seed, index, stretch) % (stop - start)
    return pick.where(pick < index, -1)
