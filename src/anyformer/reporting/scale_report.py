"""The report of a ladder of sizes: predicted and measured loss, scaling laws with confidence bands, the best size."""

import shlex
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

import anyformer
from anyformer.core.readable_numbers import clock, counted, human, human_flops
from anyformer.disk import store
from anyformer.drawing.figures import Line, Lines
from anyformer.reporting.pages import drawn, html
from anyformer.statistics.intervals import difference_text
from anyformer.statistics.paired import t_interval
from anyformer.statistics.scaling import LawFit, NotEnough
from anyformer.study.ladder_results import Scaled
from anyformer.study.scaling_laws import LadderPoint, data_points, frontier

PAGE = "scale.html"
DRAWN = 40
"""Number of points on a fitted curve."""
HEADINGS = ("run", "weights N", "tokens D", "operations", "6 N D", "loss", "seeds", "time", "rate")


def facts(scaled: Scaled, rate: float | None = None) -> dict[str, Any]:
    """The output of `scale --json`: the ladder, its compute, and the best size for the largest budget."""
    most = max(point.flops for point in scaled.points)
    best = {arm: laws.optimum(most) for arm, laws in scaled.laws.items()}
    spent = {_run_name(point): point.spent(rate) for point in scaled.points} if rate else {}
    optima = {arm: vars(optimum) if optimum else None for arm, optimum in best.items()}
    return {**scaled.to_dict(), "optimum": optima, "spent_flops": spent}


def lines(scaled: Scaled, rate: float | None = None) -> list[str]:
    """The report as lines of text for the terminal."""
    return [*scaled.sentences, *(f"{label}: {text}" for label, text in _laws(scaled)), *_notes(scaled, rate)]


def _notes(scaled: Scaled, rate: float | None) -> list[str]:
    """The best size, and the time."""
    texts = []
    most = max(point.flops for point in scaled.points)
    for arm, laws in scaled.laws.items():
        if best := laws.optimum(most):
            size = f"{human(best.weights)} weights and {human(best.tokens)} tokens"
            texts.append(f"the best size{scaled.of(arm)} at {human_flops(best.flops)} is {size}")
    texts.append(f"{counted(len(scaled.points), 'runs')} in {clock(scaled.seconds)}")
    if rate:
        total = sum(point.spent(rate) for point in scaled.points)
        texts.append(f"time x devices x rate: {human_flops(total)} for the whole ladder")
    return texts


def _laws(scaled: Scaled) -> Iterator[tuple[str, str]]:
    """The name of each law, and its exponents with their differences from those of the first architecture."""
    for arm, laws in scaled.laws.items():
        for name, law in laws.named().items():
            differences = [one.difference for one in scaled.differences if (one.arm, one.law) == (arm, name)]
            less = f"; less {scaled.arms[0]}: {', '.join(map(difference_text, differences))}" if differences else ""
            yield f"{arm}, {name}" if len(scaled.arms) > 1 else name, _law(law) + less


def write_scale_report(scaled: Scaled, rate: float | None = None, out: Path | None = None) -> Path:
    """Writes the report as a self-contained HTML page, or as Markdown if the name ends in .md."""
    out = out or scaled.folder / PAGE
    if out.suffix == ".md":
        return store(out, scale_markdown(scaled))
    shown = {
        "name": scaled.name,
        "sentences": scaled.sentences,
        "pictures": [(panel.title, Markup(drawn(panel.draw, panel.title))) for panel in _pictures(scaled)],
        "laws": list(_laws(scaled)),
        "headings": [*HEADINGS, *(["time × devices × rate"] if rate else [])],
        "points": _rows(scaled, rate),
        "notes": _notes(scaled, rate),
        "folder": shlex.quote(str(scaled.folder)),
        "version": anyformer.__version__,
    }
    return store(out, html("scale", shown))


def scale_markdown(scaled: Scaled) -> str:
    """The report without pictures."""
    laws = [f"| {label} | {text} |" for label, text in _laws(scaled)]
    table = [f"| {' | '.join(row)} |" for row in (HEADINGS, ["---"] * len(HEADINGS), *_rows(scaled, None))]
    parts = [
        f"# {scaled.name}: a ladder of sizes",
        "\n".join(f"- {sentence}" for sentence in scaled.sentences),
        "\n".join(["| law | exponents |", "|---|---|", *laws]),
        "\n".join(f"- {line}" for line in _notes(scaled, None)),
        "\n".join(table),
        "Weights leave embeddings and output heads out. A loss is the mean over the seeds, a time the sum.",
    ]
    return "\n\n".join(parts) + "\n"


def _run_name(point: LadderPoint) -> str:
    return f"{point.name}/seed-{point.seed}"


def _rungs(points: Sequence[LadderPoint]) -> list[list[LadderPoint]]:
    """The runs of each rung."""
    rungs: dict[str, list[LadderPoint]] = {}
    for point in points:
        rungs.setdefault(point.name, []).append(point)
    return list(rungs.values())


def _loss(runs: Sequence[LadderPoint]) -> float:
    """The mean loss over the seeds."""
    return t_interval([run.loss for run in runs]).value


def _rows(scaled: Scaled, rate: float | None) -> list[list[str]]:
    """A row of the table for each rung."""
    rows = []
    for runs in _rungs(scaled.points):
        first, seconds = runs[0], sum(run.seconds for run in runs)
        cells = [first.name, human(first.weights), human(first.tokens)]
        cells += [human_flops(first.flops), human_flops(first.estimate), f"{_loss(runs):.4f}", str(len(runs))]
        cells += [clock(seconds), f"{human_flops(t_interval([run.rate for run in runs]).value)}/s"]
        rows.append([*cells, human_flops(sum(run.spent(rate) for run in runs))] if rate else cells)
    return rows


def _law(law: "LawFit[Any] | NotEnough") -> str:
    if isinstance(law, NotEnough):
        return str(law)
    exponents = []
    for name in (name for name in vars(law.law) if "exponent" in name):
        band = law.band(attrgetter(name))
        exponents.append(f"{name.replace('_', ' ')} {band.value:.3f} ({band.low:.3f} to {band.high:.3f})")
    return f"{', '.join(exponents)}; explains {law.explained:.1%} of how the loss varies"


def _pictures(scaled: Scaled) -> list[Lines]:
    """The loss along the three axes: size, data (where several lengths were trained) and compute."""
    by_size, by_data, by_compute = list[Line](), list[Line](), list[Line]()
    for arm, laws in scaled.laws.items():
        label, points = f"{arm}, " if len(scaled.arms) > 1 else "", [one for one in scaled.points if one.arm == arm]
        full_length = [point for point in points if point.tokens == laws.longest]
        by_size += _curves(label, laws.best(laws.longest), full_length, "weights")
        by_compute += _curves(label, laws.compute, frontier(points), "flops")
        by_data += _curves(label, laws.data, data_points(points), "tokens")
        for prediction in (one for one in scaled.predictions if one.arm == arm):
            if place := next((point for point in points if point.name == prediction.rung), None):
                band = [prediction.low], [prediction.high]
                for curves, x in ((by_size, place.weights), (by_compute, place.flops)):
                    curves.append(Line(f"{label}predicted", [x], [prediction.loss], band=band, paired=True))
    y = "loss on held-out text"
    pictures = [
        Lines("Loss by size", "weights N", y, by_size, log_x=True, log_y=True),
        Lines("Loss by tokens, at one size", "tokens D", y, by_data, log_x=True, log_y=True),
        Lines("Loss by operations", "FLOP", y, by_compute, log_x=True, log_y=True),
    ]
    return pictures if any(len(line.x) > 1 for line in by_data) else [pictures[0], pictures[2]]


def _curves(label: str, law: "LawFit[Any] | NotEnough", points: Sequence[LadderPoint], axis: str) -> list[Line]:
    """The measured losses by size, tokens or FLOPs, and the law through them with its band."""
    rungs = sorted(_rungs(points), key=lambda runs: float(getattr(runs[0], axis)))
    places = [float(getattr(runs[0], axis)) for runs in rungs]
    measured = Line(f"{label}measured", places, [_loss(runs) for runs in rungs])
    if isinstance(law, NotEnough):
        return [measured]
    shown = np.geomspace(min(places), max(places), DRAWN).tolist()
    bands = [law.curve_at(place) for place in shown]
    edges = [band.low or band.value for band in bands], [band.high or band.value for band in bands]
    values = [band.value for band in bands]
    return [measured, Line(f"{label}law, 95%", shown, values, theory=True, band=edges, paired=True)]
