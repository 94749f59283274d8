"""The bases of choosing a word: a sampler takes one from each row of scores, filters change the scores before.

All of it is tensor work without a look at any value, so that it can follow a captured step without waiting for it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anyformer.core import Spec

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@dataclass(frozen=True, kw_only=True)
class Filter(Spec):
    """Changes the scores of words before one is taken."""

    tempered: ClassVar[bool] = True
    """True: acts on scores that the temperature has divided; False: on the model's own, before."""
    looks_back: ClassVar[bool] = False
    """True: needs to know which words there have been."""
    waits: ClassVar[bool] = False
    """True: looks at a value, or fetches one from the host at every call, so that no graph can be captured of it."""

    def apply(self, scores: Float[Tensor, "b v"], seen: Bool[Tensor, "b v"] | None) -> Float[Tensor, "b v"]:
        """New scores; -inf for what may not be taken."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Sampler(Spec):
    """How the next word is chosen."""

    @property
    def looks_back(self) -> bool:
        """True: `pick` needs to be told the words of the prompt and those written."""
        return False

    @property
    def waits(self) -> bool:
        """True: `pick` looks at a value, or fetches one from the host at every call; so it is never captured."""
        return False

    def pick(
        self, logits: Float[Tensor, "b v"], uniform: Float[Tensor, " b"], seen: Bool[Tensor, "b v"] | None = None
    ) -> Int[Tensor, " b"]:
        """A word for each row. `uniform` in [0, 1) is all the randomness there is; `seen` marks the words so far."""
        raise NotImplementedError


def filtered(
    filters: Iterable[Filter], scores: Float[Tensor, "b v"], seen: Bool[Tensor, "b v"] | None, *, tempered: bool
) -> Float[Tensor, "b v"]:
    """Through each of the filters that act on this side of the temperature, in the order in which they are given."""
    for each in filters:
        if each.tempered == tempered:
            scores = each.apply(scores, seen)
    return scores


def picked(
    sampler: Sampler, logits: Float[Tensor, "b v"], uniform: Float[Tensor, " b"], seen: list[Bool[Tensor, "b v"]]
) -> Int[Tensor, " b"]:
    """A word for each row, which has been seen from now on. `seen` is empty if the sampler does not look back."""
    word = sampler.pick(logits, uniform, *seen)
    for table in seen:
        table.scatter_(1, word[:, None], True)
    return word


def uniform(seeds: Int[Tensor, " b"], steps: range) -> Float[Tensor, "n b"]:
    """Numbers in [0, 1), each from a row's own seed and a step alone: neighbours never change it."""
    offsets = torch.tensor([_signed(step * _GOLDEN) for step in steps], device=seeds.device)
    mixed = _mix(_mix(seeds) + offsets[:, None])
    return _shift(mixed, 11).double() * 2.0**-53


def _mix(z: Tensor) -> Tensor:
    """The finalizer of splitmix64: every bit of the input moves every bit of the output."""
    z = (z ^ _shift(z, 30)) * _signed(_FIRST)
    z = (z ^ _shift(z, 27)) * _signed(_SECOND)
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """To the right, filled with zeros: torch's own copies the sign."""
    return torch.bitwise_right_shift(z, bits) & ((1 << (64 - bits)) - 1)


def _signed(number: int) -> int:
    """The same 64 bits as torch's integers read them."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number
