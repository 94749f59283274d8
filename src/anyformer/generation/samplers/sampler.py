"""The bases of sampling: a sampler picks one token from each row of logits, filters change the logits before, and
`SamplingStrategy` has a sampler choose every token of a decoding.

Everything is tensor work that reads no value on the host, so it can be captured in a CUDA graph behind a model call.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anyformer.core import Spec, reorder

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


_SEED_BITS = (1 << 63) - 1


class SamplingHistory(NamedTuple):
    """What a sampler knows about each row."""

    token: Int[Tensor, " b"]
    """The last token, which the model has not read yet."""
    seed: Int[Tensor, " b"]
    step: Int[Tensor, " b"]
    """Number of random numbers that were used."""
    seen: list[Bool[Tensor, "b v"]]
    """Which tokens have occurred; empty if the sampler does not look back."""

    def choose(self, sampler: Sampler, logits: Float[Tensor, "b v"], number: Float[Tensor, " b"]) -> "SamplingHistory":
        """The history with a token that the sampler picks; it is marked in `seen`, in place."""
        token = sampler.pick(logits, number, *self.seen)
        for table in self.seen:
            table.scatter_(1, token[:, None], True)
        step = self.step + 1 if sampler.draws else self.step
        return SamplingHistory(token, self.seed, step, self.seen)


@dataclass(frozen=True)
class SamplingStrategy:
    """Chooses every token by a sampler, with random numbers that depend on the row's seed and step alone."""

    sampler: Sampler

    @property
    def waits(self) -> bool:
        return self.sampler.waits

    def begin(
        self, seeds: Sequence[int], prompts: Sequence[Sequence[int]], logits: Float[Tensor, "b v"]
    ) -> SamplingHistory:
        """The history of rows that have read their prompts."""
        seed = torch.tensor([seed & _SEED_BITS for seed in seeds], device=logits.device)
        seen = [torch.zeros_like(logits, dtype=torch.bool)] if self.sampler.looks_back else []
        for table in seen:
            for row, prompt in zip(table, prompts, strict=True):
                row[torch.tensor(prompt, device=table.device)] = True
        return SamplingHistory(torch.zeros_like(seed), seed, torch.zeros_like(seed), seen)

    def draw(self, history: SamplingHistory, steps: int) -> Sequence[Tensor]:
        if not self.sampler.draws:
            return torch.zeros(steps, len(history.seed), dtype=torch.double, device=history.seed.device).unbind()
        ahead = torch.arange(steps, device=history.step.device)[:, None]
        return uniform(history.seed, history.step + ahead).unbind()

    def choose(self, history: SamplingHistory, logits: Float[Tensor, "b v"], number: Tensor | None) -> SamplingHistory:
        assert number is not None
        return history.choose(self.sampler, logits, number)

    def choice(
        self, compile: Callable[[object], object]
    ) -> Callable[[SamplingHistory, Tensor, Tensor | None], SamplingHistory]:
        return self.choose

    def tokens(self, history: SamplingHistory) -> Int[Tensor, " b"]:
        return history.token

    def parents(self, history: SamplingHistory) -> None:
        return None

    def select(self, history: SamplingHistory, places: Int[Tensor, " n"]) -> tuple[SamplingHistory, Int[Tensor, " n"]]:
        return reorder(history, places), places


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
