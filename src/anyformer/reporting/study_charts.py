"""Charts of a study: loss curves by step, token, FLOP and time, and loss against cost with the Pareto front."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np
from jaxtyping import Float
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from torch import Tensor

from anyformer.analysis.influence import from_farther, reach
from anyformer.drawing.figures import heatmap
from anyformer.errors import AnyformerError
from anyformer.reporting.labels import label_points
from anyformer.reporting.pages import COLOURS, INK, LINE, SERIES, Chart, Curve, drawn, tick
from anyformer.run import Run
from anyformer.study.arm_results import ArmResult, RunResult
from anyformer.study.budget_curves import BudgetCurves
from anyformer.study.study_results import Results

SHORT_S = 180
ARMS = (INK, *SERIES)
"""Colours of the arms, the baseline first."""
TOKENS, TEXTS = 32, 50
"""Maximum tokens of the text, and number of held-out records among which the longest is chosen."""


@dataclass(frozen=True)
class Shown:
    """The arms that are drawn, each in its colour: the baseline and the best of the others."""

    results: Results

    @property
    def arms(self) -> list[ArmResult]:
        first, *others = self.results.arms
        best = sorted(others, key=lambda arm: (math.isnan(loss := arm.mean(self.results.metric).value), loss))
        shown = {arm.name for arm in [first, *best[: len(ARMS) - 1]]}
        return [arm for arm in self.results.arms if arm.name in shown]

    @property
    def colours(self) -> Mapping[str, str]:
        """Colour of each arm for matplotlib."""
        return {arm.name: ARMS[number] for number, arm in enumerate(self.arms)}

    @property
    def words(self) -> Mapping[str, str]:
        """Name of the CSS variable with the colour of each arm."""
        return {name: COLOURS[colour][len("var(--") : -1] for name, colour in self.colours.items()}


def curve_charts(results: Results) -> Iterator[Chart]:
    """Charts of the mean validation loss of each arm's finished runs, with a band from minimum to maximum."""
    shown = Shown(results)
    paths = {arm.name: [path for run in arm.runs if (path := _path(arm, run))] for arm in shown.arms}
    longest = max((path["wall_s"][-1] for arm_paths in paths.values() for path in arm_paths), default=0.0)
    unit, scale = ("seconds", 1.0) if longest < SHORT_S else ("minutes", 1 / 60)
    axes = (("step", "steps", 1), ("tokens", "tokens", 1), ("flops", "FLOP", 1), ("wall_s", unit, scale))
    for axis, label, factor in axes:
        curves = [_curve(arm, paths[arm], axis, colour) for arm, colour in shown.colours.items() if paths[arm]]
        if any(curve.x[-1] > 0 for curve in curves):
            yield Chart(f"Validation loss by {label}", label, "validation loss", curves, x_scale=factor)


def budget_chart(results: Results, budgets: BudgetCurves) -> Chart:
    """The mean loss of each arm at each budget, with its 95% interval."""
    curves = []
    for arm, colour in Shown(results).colours.items():
        losses = budgets.losses(arm)
        lows = [loss.value if loss.low is None else loss.low for loss in losses]
        highs = [loss.value if loss.high is None else loss.high for loss in losses]
        means = [loss.value for loss in losses]
        curves.append(Curve(arm, budgets.steps, means, colour, marked=True, band=(lows, highs)))
    return Chart("Loss by budget", "steps of a run", results.comparison.metric, curves)


def cost_charts(results: Results) -> Iterator[tuple[str, str]]:
    """Titles and charts of loss against parameters, FLOPs and time, without the matched quantity."""
    shown, metric = Shown(results), results.comparison.metric
    costs: dict[str, Any] = {
        "params": ("parameters", lambda arm: float(arm.arm.budgets.params)),
        "flops": ("training FLOP", lambda arm: float(arm.arm.train_flops)),
        "time": ("seconds of training", lambda arm: arm.mean("wall_s").value),
    }
    costs.pop(results.spec.match, None)  # equal for all arms
    for label, cost in costs.values():
        points = {arm.name: (cost(arm), arm.mean(results.metric).value) for arm in shown.arms}
        known = {name: point for name, point in points.items() if point[0] > 0 and all(map(math.isfinite, point))}
        if len(known) > 1:
            title = f"{metric.capitalize()} against {label}"
            draw = partial(_draw_scatter, x_label=label, y_label=metric, points=known, colours=shown.colours)
            yield title, drawn(draw, title)


def front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """The Pareto front: arms that no other arm beats in both cost and loss, in order of cost."""
    best, lowest = list[str](), math.inf
    for name, (_, loss) in sorted(points.items(), key=lambda item: item[1]):
        if loss < lowest:
            best, lowest = [*best, name], loss
    return best


def _path(arm: ArmResult, run: RunResult) -> dict[str, list[float]]:
    """Validation losses of a complete run with their steps, tokens, FLOPs and seconds; otherwise empty."""
    lines = list(Run(run.folder).metrics()) if run.state == "complete" else []
    valid = [line for line in lines if line.get("valid_loss") is not None]
    known = [line for line in lines if "wall_s" in line]
    if not valid or not known:
        return {}
    steps = [float(line["step"]) for line in valid]
    measured = [0.0, *(float(line["step"]) for line in known)]
    path = {"step": steps, "flops": [step / measured[-1] * arm.arm.train_flops for step in steps]}
    for key in ("tokens", "wall_s"):
        path[key] = np.interp(steps, measured, [0.0, *(float(line[key]) for line in known)]).tolist()
    return {**path, "loss": [float(line["valid_loss"]) for line in valid]}


def _curve(name: str, paths: Sequence[Mapping[str, list[float]]], axis: str, colour: str) -> Curve:
    """The mean curve of several runs, cut to the shortest because a time limit may end runs at different steps."""
    length = min(len(path["loss"]) for path in paths)
    x, losses = (np.array([path[key][:length] for path in paths]) for key in (axis, "loss"))
    band = (losses.min(axis=0).tolist(), losses.max(axis=0).tolist())
    return Curve(name, x.mean(axis=0).tolist(), losses.mean(axis=0).tolist(), colour, band=band)


def _draw_scatter(
    axes: Axes, x_label: str, y_label: str, points: Mapping[str, tuple[float, float]], colours: Mapping[str, str]
) -> None:
    """Draws a scatter plot of arms with the Pareto front."""
    best = [points[name] for name in front(points)]
    axes.plot(*zip(*best, strict=True), color=LINE, linewidth=1.2, linestyle="--", drawstyle="steps-post")
    for name, (x, y) in points.items():
        axes.plot([x], [y], "o", color=colours[name], ms=6)
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.margins(0.18, 0.18)
    label_points(axes, list(points), list(points.values()))
    axes.xaxis.set_major_formatter(FuncFormatter(tick))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5))


@dataclass(frozen=True)
class InfluenceMaps:
    """Influence maps of each arm; empty if no run is complete or the data are no longer available."""

    results: Results

    @cached_property
    def run(self) -> Run | None:
        """The first complete run, whose tokenizer all arms share."""
        return next((Run(arm.first) for arm in self.results.arms if arm.first), None)

    @cached_property
    def tokens(self) -> list[int]:
        """Token ids of the held-out text that all arms read."""
        if self.run is None:
            return []
        try:
            records = islice(self.run.records(split=self.results.metric.removesuffix("_loss")), TEXTS)
            return max((self.run.tokenizer.encode(record.text)[:TOKENS] for record in records), key=len, default=[])
        except AnyformerError:
            return []

    @property
    def text(self) -> str:
        return self.run.tokenizer.decode(self.tokens) if self.run else ""

    @cached_property
    def shares(self) -> dict[str, Float[Tensor, "t s"]]:
        """Share of each source token in the state at each target token, for the first complete run of each arm."""
        runs = {arm.name: arm.first for arm in Shown(self.results).arms} if len(self.tokens) > 1 else {}
        return {name: reach(Run(run).trained().model, self.tokens) for name, run in runs.items() if run}

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
        curves = [Curve(arm, range(len(rows)), from_farther(rows), colours[arm]) for arm, rows in square.items()]
        return Chart("What comes from farther away", "tokens away", "share of influence", curves, from_zero=True)
