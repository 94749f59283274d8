"""The bases of sampling: a sampler picks one token from each row of logits, filters change the logits before.

Everything is tensor work that reads no value on the host, so it can be captured in a CUDA graph behind a model call.
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
    """Changes the scores of tokens before one is picked."""

    tempered: ClassVar[bool] = True
    """True: acts on scores divided by the temperature; False: on the model's logits, before the division."""
    looks_back: ClassVar[bool] = False
    """True if `apply` needs `seen`, the tokens that have occurred."""
    waits: ClassVar[bool] = False
    """True if `apply` reads a tensor's value or copies one from the host at every call, so it cannot be captured."""

    def apply(self, scores: Float[Tensor, "b v"], seen: Bool[Tensor, "b v"] | None) -> Float[Tensor, "b v"]:
        """New scores; -inf for tokens that must not be picked."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Sampler(Spec):
    """How the next token is picked."""

    @property
    def looks_back(self) -> bool:
        """True if `pick` needs `seen`: the tokens of the prompt and those generated."""
        return False

    @property
    def waits(self) -> bool:
        """True if `pick` reads a tensor's value or copies one from the host at every call, so it is never captured."""
        return False

    @property
    def draws(self) -> bool:
        """True if `pick` uses `uniform`; otherwise it is given zeros."""
        return True

    def pick(
        self, logits: Float[Tensor, "b v"], uniform: Float[Tensor, " b"], seen: Bool[Tensor, "b v"] | None = None
    ) -> Int[Tensor, " b"]:
        """A token for each row. `uniform` in [0, 1) is the only randomness; `seen` marks the tokens so far."""
        raise NotImplementedError


def filtered(
    filters: Iterable[Filter], scores: Float[Tensor, "b v"], seen: Bool[Tensor, "b v"] | None, *, tempered: bool
) -> Float[Tensor, "b v"]:
    """The scores after all filters that act on this side of the temperature, in their order."""
    for each in filters:
        if each.tempered == tempered:
            scores = each.apply(scores, seen)
    return scores


def uniform(seeds: Int[Tensor, " b"], steps: Int[Tensor, "n #b"]) -> Float[Tensor, "n b"]:
    """Random numbers in [0, 1) that depend on the row's seed and step alone, not on other rows."""
    return _shift(_mix(_mix(seeds) + steps * _signed(_GOLDEN)), 11).double() * 2.0**-53


def _mix(z: Tensor) -> Tensor:
    """The finalizer of splitmix64: every input bit affects every output bit."""
    z = (z ^ _shift(z, 30)) * _signed(_FIRST)
    z = (z ^ _shift(z, 27)) * _signed(_SECOND)
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch's shift copies the sign bit."""
    return torch.bitwise_right_shift(z, bits) & ((1 << (64 - bits)) - 1)


def _signed(number: int) -> int:
    """The same 64 bits as a signed integer, as torch has them."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number
