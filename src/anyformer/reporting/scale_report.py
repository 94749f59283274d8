"""The report of a ladder of sizes: predicted and measured loss, scaling laws with confidence bands, the best size."""

import shlex
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

import anyformer
from anyformer.core.readable_numbers import clock, human, human_flops
from anyformer.disk import store
from anyformer.drawing.figures import Line, Lines
from anyformer.reporting.pages import drawn, html
from anyformer.statistics.scaling import LawFit, NotEnough
from anyformer.study.ladder import Scaled
from anyformer.study.scaling_laws import LadderPoint

PAGE = "scale.html"
DRAWN = 40
"""Number of points on a fitted curve."""


def facts(scaled: Scaled, rate: float | None = None) -> dict[str, Any]:
    """The output of `scale --json`: the ladder, its compute, and the best size for the largest budget."""
    best = scaled.laws.optimum(max(point.flops for point in scaled.points))
    spent = {point.name: point.spent(rate) for point in scaled.points} if rate else {}
    return {**scaled.to_dict(), "optimum": vars(best) if best else None, "spent_flops": spent}


def lines(scaled: Scaled, rate: float | None = None) -> list[str]:
    """The report as lines of text for the terminal."""
    texts = [sentence(scaled)]
    texts += [f"{name}: {_law(law)}" for name, law in scaled.laws.named().items()]
    if best := scaled.laws.optimum(max(point.flops for point in scaled.points)):
        size = f"{human(best.weights)} weights and {human(best.tokens)} tokens"
        texts.append(f"for {human_flops(best.flops)} the best is {size}")
    if rate:
        total = sum(point.spent(rate) for point in scaled.points)
        texts.append(f"time x devices x rate: {human_flops(total)} for the whole ladder")
    return texts


def sentence(scaled: Scaled) -> str:
    """The predicted and the measured loss of the largest size, in one sentence."""
    if not scaled.predictions:
        return f"No prediction: {scaled.lacking}."
    last = scaled.predictions[-1]
    off = scaled.off(last)
    inside = last.low <= last.loss * (1 + off) <= last.high
    return (
        f"{last.rung} was predicted to end at {last.loss:.4f} ({last.low:.4f} to {last.high:.4f}) by {last.law}; it "
        f"ended at {last.loss * (1 + off):.4f}, {off:+.2%}, {'inside' if inside else 'outside'} the band."
    )


def write_scale_report(scaled: Scaled, rate: float | None) -> Path:
    """Writes the report as a self-contained HTML page."""
    shown = {
        "name": scaled.name,
        "sentence": sentence(scaled),
        "pictures": [(panel.title, Markup(drawn(panel.draw, panel.title))) for panel in _pictures(scaled)],
        "laws": [(name, _law(law)) for name, law in scaled.laws.named().items()],
        "points": [_row(point, rate) for point in scaled.points],
        "rate": rate,
        "notes": lines(scaled, rate)[1 + len(scaled.laws.named()) :],
        "folder": shlex.quote(str(scaled.folder)),
        "version": anyformer.__version__,
    }
    return store(scaled.folder / PAGE, html("scale", shown))


def _row(point: LadderPoint, rate: float | None) -> list[str]:
    cells = [point.name, human(point.weights), human(point.tokens)]
    cells += [human_flops(point.flops), human_flops(point.estimate)]
    cells += [f"{point.loss:.4f}", clock(point.seconds), f"{human_flops(point.rate)}/s"]
    return [*cells, human_flops(point.spent(rate))] if rate else cells


def _law(law: "LawFit[Any] | NotEnough") -> str:
    if isinstance(law, NotEnough):
        return str(law)
    exponents = []
    for name in (name for name in vars(law.law) if "exponent" in name):
        band = law.band(attrgetter(name))
        exponents.append(f"{name.replace('_', ' ')} {band.value:.3f} ({band.low:.3f} to {band.high:.3f})")
    return f"{', '.join(exponents)}; explains {law.explained:.1%} of how the loss varies"


def _pictures(scaled: Scaled) -> list[Lines]:
    longest = max(point.tokens for point in scaled.points)
    full_length = [point for point in scaled.points if point.tokens == longest]
    by_size = _curves(scaled.laws.size, [point.weights for point in full_length], [point.loss for point in full_length])
    by_compute = _curves(
        scaled.laws.compute, [point.flops for point in scaled.points], [point.loss for point in scaled.points]
    )
    if scaled.predictions:
        last = scaled.predictions[-1]
        place = next(point for point in scaled.points if point.name == last.rung)
        for curves, x in ((by_size, place.weights), (by_compute, place.flops)):
            curves.append(Line("predicted", [x], [last.loss], band=([last.low], [last.high])))
    return [
        Lines("Loss by size", "weights N", "loss on held-out text", by_size, log_x=True, log_y=True),
        Lines("Loss by operations", "FLOP", "loss on held-out text", by_compute, log_x=True, log_y=True),
    ]


def _curves(law: "LawFit[Any] | NotEnough", sizes: Sequence[float], losses: Sequence[float]) -> list[Line]:
    order = np.argsort(sizes)
    measured = Line("measured", [float(sizes[index]) for index in order], [float(losses[index]) for index in order])
    if isinstance(law, NotEnough):
        return [measured]
    places = np.geomspace(min(sizes), max(sizes), DRAWN).tolist()
    bands = [law.curve_at(place) for place in places]
    edges = [band.low or band.value for band in bands], [band.high or band.value for band in bands]
    return [measured, Line("law, 95%", places, [band.value for band in bands], theory=True, band=edges)]
