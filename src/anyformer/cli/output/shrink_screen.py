"""What `shrink` does after its arguments are read: makes the smaller runs, measures them and prints one table."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from anyformer.cli.output import run_options
from anyformer.cli.output.screen import Screen, cache_folder, note, plain_table, store_as
from anyformer.drawing.figures import Drawing, form_of
from anyformer.errors import SpecError
from anyformer.ops.int8_linear import Activations
from anyformer.reporting.shrink_table import ShrinkTable, shrink_table
from anyformer.run import Run
from anyformer.shrink.averaging import average_checkpoints, average_runs
from anyformer.shrink.curve import CurveSettings, curve_drawing, pruning_curve
from anyformer.shrink.distilling import StudentSettings, alone, distil
from anyformer.shrink.measuring import measured
from anyformer.shrink.pruning import PruneAmount
from anyformer.shrink.quantising import quantise
from anyformer.shrink.run_writing import store_table
from anyformer.shrink.shrinking import RANDOM, PruneSettings, prune, refuse_occupied_folders
from anyformer.training.runs.run_folder import refuse_occupied
from anyformer.training.runs.session import Watcher

Quantisation = Literal["int8", "weights"]
"""int8: weights and the input of every matrix; weights: only these."""


def pruned_runs(run: Run, settings: PruneSettings, out: Path, control: bool, screen: Screen) -> dict[str, Run]:
    """Prunes a run, and once more at random if a control is wanted; the runs by the names of their columns."""
    settings.parsed()
    runs = {"before": run}
    folders = {settings.by: out}
    if control:
        folders.setdefault(RANDOM, out.with_name(f"{out.name}-{RANDOM}"))
    for folder in folders.values():
        refuse_occupied_folders(folder, settings)
    for by, folder in folders.items():
        note(screen, f"pruning {' '.join(settings.amounts)} by {by} into {folder}")
        result = prune(run, replace(settings, by=by), folder, cache=cache_folder(), watcher=QuietProgress(screen))
        if result.before_training is not None:
            runs[f"{by}, pruned"] = result.before_training
        runs[f"{by}, trained" if settings.steps else by] = result.run
    return runs


def quantised_runs(run: Run, weights: Quantisation, out: Path) -> dict[str, Run]:
    """Quantises a run; the runs by the names of their columns."""
    activations: Activations = "int8" if weights == "int8" else "float"
    return {"before": run, "quantised": quantise(run, out, activations)}


def averaged_runs(run: Run, words: Sequence[str], out: Path) -> dict[str, Run]:
    """Averages the last checkpoints (a number) or several runs; the runs by the names of their columns."""
    if len(words) == 1 and words[0].isdecimal():
        if not int(words[0]):
            raise SpecError("--average 0: needs at least one checkpoint. Write for example --average 3.")
        return {"before": run, "average": average_checkpoints(run, int(words[0]), out)}
    others = [run_options.open_run(Path(word)) for word in words]
    return {"before": run, **{other.name: other for other in others}, "average": average_runs(run, others, out)}


def distilled_runs(run: Run, settings: StudentSettings, out: Path, control: bool, screen: Screen) -> dict[str, Run]:
    """Trains a student, and the same student without a teacher if a control is wanted."""
    runs = {"teacher": run}
    watcher, cache, without_teacher = QuietProgress(screen), cache_folder(), out.with_name(f"{out.name}-alone")
    for folder in (out, without_teacher) if control else (out,):
        refuse_occupied(folder)
    note(screen, f"distilling into {out}")
    runs["student"] = distil(run, settings, out, cache=cache, watcher=watcher)
    if control:
        note(screen, f"training the same student without a teacher into {without_teacher}")
        runs["student alone"] = alone(run, settings, without_teacher, cache=cache, watcher=watcher)
    return runs


def result_of(runs: Mapping[str, Run], folder: Path) -> Run:
    """The run that was made in this folder."""
    return next(run for run in runs.values() if run.folder == folder)


class QuietProgress(Watcher):
    """Notes of a training run on standard error: its messages and validation losses."""

    def __init__(self, screen: Screen):
        self.screen = screen

    def log(self, text: str) -> None:
        note(self.screen, text)

    def evaluated(self, step: int, loss: float) -> None:
        note(self.screen, f"step {step}: validation loss {loss:.4f}")


def report_runs(runs: Mapping[str, Run], result: Run, limit: int | None, device: str, screen: Screen) -> None:
    """Measures runs side by side, stores the table with the new run and prints it."""
    note(screen, "measuring")
    facts = {name: measurement.to_dict() for name, measurement in measured(runs, limit, device).items()}
    store_table(result.folder, facts)
    if screen.json:
        screen.data({"run": str(result.folder), "table": facts})
    elif screen.quiet:
        screen.lines(str(result.folder))
    else:
        screen.show(rich_table(shrink_table(facts)))
        screen.written(result.folder)


def rich_table(content: ShrinkTable) -> Table:
    """A table for the terminal."""
    table = plain_table()
    for place, name in enumerate(content.columns):
        table.add_column(name, justify="left" if place == 0 else "right", style="cyan" if place == 0 else "")
    for row in content.rows:
        table.add_row(*row)
    return table


def show_curve(
    run: Run, text: str, settings: PruneSettings, out: Path | None, limit: int | None, screen: Screen
) -> None:
    """Prints the scores over several shares, such as weights=0.1,0.5,0.9, and draws them if a picture is wanted."""
    what, _, listed = text.partition("=")
    shares = [PruneAmount.parse(f"{what}={share}").share for share in listed.split(",")]
    if settings.steps or len(settings.amounts) > 1:
        raise SpecError(f"--prune {text}: a curve prunes one thing and trains nothing. Leave out --steps and others.")
    form = form_of(out.suffix, "--out") if out else "svg"
    ways = (settings.by, *([RANDOM] if settings.by != RANDOM else []))
    chosen = CurveSettings(what=what, shares=shares, by=ways, scope=settings.scope, limit=limit, seed=settings.seed)
    points = pruning_curve(run, chosen, cache_folder())
    if screen.json:
        screen.data([point.to_dict() for point in points])
    else:
        rows = [[f"{point.share:g}", point.by, f"{point.params:,}", *_values(point.scores)] for point in points]
        columns = ["share", "by", "parameters left", *points[0].scores]
        screen.show(rich_table(ShrinkTable(columns, rows)))
    if out is not None:
        drawing: Drawing = curve_drawing(points, what)
        store_as(out, drawing.bytes(form), "--out")
        if not screen.json:
            screen.written(out)


def _values(scores: Mapping[str, Any]) -> Sequence[str]:
    def ends(score: Any) -> str:
        return "" if score.low is None else f" ({score.low:.4f} to {score.high:.4f})"

    return [f"{score.value:.4f}{ends(score)}" for score in scores.values()]
