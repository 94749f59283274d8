"""Coverage during beam search: how much attention each hypothesis has paid to each token of the source."""

import contextlib
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anyformer.core import Model, capture
from anyformer.errors import Problem, SpecError
from anyformer.generation.beam.penalties import Coverage, coverage


class CoverageTracker(contextlib.ExitStack):
    """Sums the attention of each hypothesis over its tokens, from the taps of the model."""

    def __init__(self, model: Model, spec: Coverage):
        super().__init__()
        self.spec, self._patterns = spec, self.enter_context(capture(model, spec.taps))

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
