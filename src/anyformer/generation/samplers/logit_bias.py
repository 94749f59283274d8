"""Adds a bias to the logits of some tokens: z_i + b_i. A large negative bias forbids a token."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from anyformer.errors import Problem, SpecError
from anyformer.generation.samplers.sampler import Filter


@dataclass(frozen=True, kw_only=True)
class LogitBias(Filter, kind="logit_bias"):
    """Makes some tokens more or less likely."""

    tempered: ClassVar[bool] = False

    bias: dict[str, float]
    """Token id -> bias that is added to its logit."""

    def check(self) -> None:
        for token, amount in self.bias.items():
            if not (token.isascii() and token.isdecimal()):
                raise SpecError(problems=[Problem(f"bias.{token}", "a token id must be an integer, 0 or above.")])
            if not abs(amount) <= 1e9:  # also if it is not a number
                raise SpecError(problems=[Problem(f"bias.{token}", f"must lie within 1e9 of zero, got {amount}.")])

    @classmethod
    def examples(cls) -> "tuple[LogitBias, ...]":
        return (cls(bias={"3": -100.0, "5": 2.5}),)

    def apply(self, scores: Tensor, seen: Tensor | None) -> Tensor:
        words = scores.shape[-1]
        place = words, scores.device
        if place not in self._rows:
            row = torch.zeros(words)
            for token, amount in self.bias.items():
                if int(token) >= words:
                    raise SpecError(problems=[Problem(f"bias.{token}", f"the model has only {words} tokens.")])
                row[int(token)] = amount
            self._rows[place] = row.to(scores.device)
        return scores + self._rows[place]

    @cached_property
    def _rows(self) -> dict[tuple[int, torch.device], Tensor]:
        """The biases by vocabulary and device. Cached, because a step must not wait for a copy and graphs read them."""
        return {}
