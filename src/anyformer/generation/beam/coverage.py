"""Coverage during beam search: how much each row has looked at each word of the source."""

import contextlib
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anyformer.core import capture
from anyformer.errors import Problem, SpecError
from anyformer.generation.beam.penalties import Coverage, coverage
from anyformer.generation.engine import Engine


class CoverageTracker(contextlib.ExitStack):
    """How much each row has looked at each word of the source."""

    def __init__(self, engine: Engine, spec: Coverage, sources: Sequence[Sequence[int]] | None):
        super().__init__()
        if engine.graphs is not None:
            raise SpecError(problems=[Problem("coverage", 'a captured step shows nothing; use steps="eager".')])
        if sources is None:
            raise SpecError(problems=[Problem("coverage", "there is no source that could be covered.")])
        self.spec, self.lengths = spec, torch.tensor([len(source) for source in sources], device=engine.device)
        self.seen = self.enter_context(capture(engine.model, spec.taps))

    def start(self, last: Int[Tensor, " n"], width: int) -> None:
        """From the prompts: what the last token of each looked at."""
        self.sums = self._mean(last).repeat_interleave(width, 0)
        self.exists = torch.arange(self.sums.shape[1], device=last.device) < self.lengths[:, None]
        self.exists = self.exists.repeat_interleave(width, 0)

    def add(self) -> None:
        """One step more."""
        self.sums = self.sums + self._mean(torch.zeros_like(self.sums[:, 0], dtype=torch.long))

    def keep(self, rows: Int[Tensor, " b"]) -> None:
        self.sums, self.exists = self.sums[rows], self.exists[rows]

    def worth(self) -> Float[Tensor, " b"]:
        return coverage(self.sums, self.spec.weight, self.exists)

    def _mean(self, at: Int[Tensor, " b"]) -> Float[Tensor, "b s"]:
        """The attention of one token of each row, over taps and heads."""
        patterns = [each[-1].float().mean(1) for each in self.seen.values()]
        if not patterns:
            raise SpecError(problems=[Problem("coverage.taps", f"no tap is called {self.spec.taps!r}.")])
        self.seen.clear()
        return torch.stack(patterns).mean(0).take_along_dim(at[:, None, None], dim=1)[:, 0]
