"""The score of a finished hypothesis: log P(Y | X) / lp(|Y|) + cp(X; Y).

power:  lp = |Y|^a                                                        Hugging Face's form
gnmt:   lp = ((5 + |Y|) / 6)^a,  cp = b sum_i log min(sum_j p_ij, 1)      (arXiv 1609.08144, eq. 14)
|Y| counts the stopping token; p_ij is the attention of output token j to source token i.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anyformer.core import Model, Range, Spec, capture
from anyformer.errors import Problem, SpecError

Exponent = Annotated[float, Range(low=-100.0, high=100.0)]


@dataclass(frozen=True, kw_only=True)
class LengthPenalty(Spec):
    """How much longer hypotheses are favoured."""

    def divisor(self, length: int) -> float:
        """The divisor of the log-probability of a hypothesis of this length."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Power(LengthPenalty, kind="power"):
    """Divides by a power of the length; with exponent 1 the score is the mean over tokens."""

    exponent: Exponent = 1.0
    """Exponent of the length: 0 is no penalty, above 1 longer hypotheses are favoured."""

    def divisor(self, length: int) -> float:
        return float(length**self.exponent)


@dataclass(frozen=True, kw_only=True)
class GNMT(LengthPenalty, kind="gnmt"):
    """The length penalty of GNMT, weaker for short outputs; the first Transformer used it with exponent 0.6."""

    exponent: Exponent = 0.6
    """Exponent of the length; 0 is no penalty."""

    def divisor(self, length: int) -> float:
        return float(((5 + length) / 6) ** self.exponent)


@dataclass(frozen=True, kw_only=True)
class Coverage(Spec):
    """Favours hypotheses that have attended to every token of the source."""

    weight: Annotated[float, Range(low=0.0)] = 0.2
    """Weight b of the coverage penalty."""
    taps: str
    """Names of the taps with attention to the source, * for any; their heads and layers are averaged."""

    @classmethod
    def examples(cls) -> "tuple[Coverage, ...]":
        return (cls(taps="decoder.stack.layers.*.branches.1.part.pattern"),)


def coverage(
    attention: Float[Tensor, "b s"], weight: float, exists: Bool[Tensor, "b s"] | None = None
) -> Float[Tensor, " b"]:
    """cp from the attention to each source token, summed over the output."""
    logs = attention.clamp(min=torch.finfo(attention.dtype).tiny, max=1.0).log()
    return weight * (logs if exists is None else logs.masked_fill(~exists, 0.0)).sum(-1)


class CoverageTracker(contextlib.ExitStack):
    """Sums the attention of each hypothesis over its tokens, from the taps of the model."""

    def __init__(self, model: Model, spec: Coverage):
        super().__init__()
        self.spec = spec
        try:
            self._patterns = self.enter_context(capture(model, spec.taps))
        except SpecError as error:
            raise error.under("coverage.taps") from None

    def start(self, sources: Sequence[Sequence[int]], last: Int[Tensor, " n"], width: int) -> None:
        """Begins with the attention of the last token of each prompt. `last`: its position."""
        sums = self._mean(last)
        lengths = torch.tensor([len(source) for source in sources], device=last.device)
        exists = torch.arange(sums.shape[1], device=last.device) < lengths[:, None]
        self._sums, self._exists = sums.repeat_interleave(width, 0), exists.repeat_interleave(width, 0)

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Each row continues with the sums of this row."""
        self._sums, self._exists = self._sums[rows], self._exists[rows]

    def bonus(self) -> Float[Tensor, " b"]:
        """The coverage penalty of each row, with the attention of the step since the last call."""
        if any(self._patterns.values()):
            self._sums = self._sums + self._mean(torch.zeros_like(self._sums[:, 0], dtype=torch.long))
        return coverage(self._sums, self.spec.weight, self._exists)

    def _mean(self, at: Int[Tensor, " b"]) -> Float[Tensor, "b s"]:
        """The attention of one token of each row, averaged over taps and heads."""
        patterns = [each[-1].float().mean(1) for each in self._patterns.values()]
        if not patterns:
            raise SpecError(problems=[Problem("coverage.taps", f"no tap is called {self.spec.taps!r}.")])
        self._patterns.clear()
        return torch.stack(patterns).mean(0).take_along_dim(at[:, None, None], dim=1)[:, 0]
