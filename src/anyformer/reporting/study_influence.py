"""Influence of earlier tokens on the states of each arm of a study, measured on one held-out text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from jaxtyping import Float
from markupsafe import Markup
from torch import Tensor

from anyformer.analysis.reach import from_farther, reach
from anyformer.drawing.charts import Chart, Curve
from anyformer.drawing.heatmaps import heatmap
from anyformer.errors import AnyformerError
from anyformer.reporting.study_charts import Shown
from anyformer.study.study_results import ArmResult, Results
from anyformer.training.runs.run import Run

TOKENS, TEXTS = 32, 50
"""Maximum tokens of the text, and number of held-out records among which the longest is chosen."""


@dataclass(frozen=True)
class InfluenceMaps:
    """Influence maps of each arm; empty if no run is complete or the data are no longer available."""

    results: Results

    @cached_property
    def tokens(self) -> list[int]:
        """Token ids of the held-out text that all arms read."""
        run = next(filter(None, map(_first, self.results.arms)), None)
        if run is None:
            return []
        try:
            texts = islice(run.records(split=self.results.metric.removesuffix("_loss")), TEXTS)
            read = [run.tokenizer.encode(record.text)[:TOKENS] for record in texts]
        except AnyformerError:
            return []
        return max(read, key=len, default=[])

    @cached_property
    def text(self) -> str:
        run = next(filter(None, map(_first, self.results.arms)), None)
        return run.tokenizer.decode(self.tokens) if run else ""

    @cached_property
    def shares(self) -> dict[str, Float[Tensor, "t s"]]:
        """Share of each source token in the state at each target token, for the first complete run of each arm."""
        runs = {arm.name: _first(arm) for arm in Shown(self.results).arms} if len(self.tokens) > 1 else {}
        return {name: reach(run.trained().model, self.tokens) for name, run in runs.items() if run}

    def maps(self) -> Iterator[tuple[str, Markup]]:
        """Name and heat map of each arm: rows are target tokens, columns are source tokens."""
        colours = Shown(self.results).words
        for name, shares in self.shares.items():
            rows: Sequence[Sequence[float]] = shares.tolist()
            yield name, heatmap(rows, f"What reaches what in {name}", colours[name])

    def distances(self) -> Chart:
        """A chart of the share of influence from farther than each distance, for all arms."""
        colours = Shown(self.results).colours
        square = {name: shares for name, shares in self.shares.items() if shares.shape[0] == shares.shape[1]}
        curves = [
            Curve(name, range(len(shares)), from_farther(shares), colours[name]) for name, shares in square.items()
        ]
        return Chart("What comes from farther away", "tokens away", "share of influence", curves, from_zero=True)


def _first(arm: ArmResult) -> Run | None:
    return next((Run(run.folder) for run in arm.runs if run.state == "complete"), None)
