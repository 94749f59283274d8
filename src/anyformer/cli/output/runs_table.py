"""A table of run folders. Imports no torch, so that listing many runs stays fast."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, JustifyMethod
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from anyformer.cli.output.screen import plain_table, visible
from anyformer.core.readable_numbers import counted, human
from anyformer.disk import STUDY, is_run_of_study
from anyformer.reporting.run_files import RunFiles, dig, finite, run_folders

WIDE = 110
COLUMNS = (
    ("run", "model", "params", "task", "step", "loss", "best valid", "state", "age"),
    ("run", "model", "step", "loss", "best valid", "state", "age"),
    ("run", "step", "loss", "best valid", "state", "age"),
    ("run", "step", "best valid", "state"),
    ("run", "state"),
)
"""Sets of columns; the first set that fits the width of the terminal is shown."""
AGES = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
STYLES = {"running": "bold cyan", "complete": "green", "failed": "red", "interrupted": "yellow", "unreadable": "red"}


def find(root: Path) -> list[dict[str, Any]]:
    """A summary of every run below a folder, newest first."""
    runs = [RunFiles(folder) for folder in run_folders(root)]
    return [line(run) for run in sorted(runs, key=lambda run: run.changed, reverse=True)]


def line(run: RunFiles) -> dict[str, Any]:
    """The entry of one run in the output of `runs --json`."""
    trained = [metrics for metrics in run.last_metrics if "loss" in metrics]
    valid = [loss for metrics in run.last_metrics if (loss := finite(metrics.get("valid_loss"))) is not None]
    saved = finite(run.progress.get("best"))
    last: Any = trained[-1] if trained else {}
    return {
        "run": str(run.folder),
        "model": dig(run.recipe, "model", "kind"),
        "params": run.params,
        "objective": dig(run.recipe, "objective", "kind"),
        "data": dig(run.recipe, "data", "source", "kind"),
        # a checkpoint may be newer than the last logged step
        "step": max(step if isinstance(step, int) else 0 for step in (last.get("step"), run.progress.get("step"))),
        "steps": run.steps,
        "train_loss": finite(last.get("loss")),
        "valid_loss": valid[-1] if valid else None,
        "best_valid_loss": min([*valid, *([] if saved is None else [saved])], default=None),
        "state": run.state,
        "age_s": round(max(0.0, time.time() - run.changed)),
    }


def table(lines: Sequence[dict[str, Any]], root: Path, width: int) -> Table:
    """A table of runs with names relative to `root`, one line per run, and as many columns as fit `width`."""
    rows = [_cells(run, root) for run in lines]
    for names in COLUMNS:
        shown = plain_table(gap=2 if width >= WIDE else 1)
        for name in names:
            right: JustifyMethod = "right" if name in ("step", "loss", "best valid", "age") else "left"
            shown.add_column("" if name == "state" else name, justify=right, no_wrap=names != COLUMNS[-1])
        for row in rows:
            shown.add_row(*(row[name] for name in names))
        if Measurement.get(Console(width=10_000), Console(width=10_000).options, shown).maximum <= width:
            break
    return shown


def left_out(shown: Table) -> list[str]:
    """Names of the columns that did not fit into a table of runs."""
    return [name for name in COLUMNS[0] if name not in {column.header or "state" for column in shown.columns}]


def _cells(run: dict[str, Any], root: Path) -> dict[str, Text]:
    """The cells of one run by column name."""
    name = run["run"] if Path(run["run"]) == root else str(Path(run["run"]).relative_to(root))
    texts = {
        "run": name,
        "model": run["model"] or "?",
        "params": human(run["params"]) if run["params"] else "",
        "task": f"{run['objective'] or '?'}, {run['data'] or '?'}",
        "step": f"{run['step']}/{run['steps']}" if run["steps"] else str(run["step"]),
        "loss": "" if run["train_loss"] is None else f"{run['train_loss']:.4f}",
        "best valid": "" if run["best_valid_loss"] is None else f"{run['best_valid_loss']:.4f}",
        "age": next((f"{run['age_s'] // size} {unit}" for size, unit in AGES if run["age_s"] >= size), "0 s"),
    }
    cells = {column: Text(visible(text), style="dim" if column == "task" else "") for column, text in texts.items()}
    at_the_end = run["steps"] is not None and run["step"] >= run["steps"]
    state = run["state"]
    if state == "interrupted" and at_the_end:
        state = "stopped before its last save"
    elif state == "complete" and run["steps"] and not at_the_end:
        state = "complete, stopped early"
    return {**cells, "state": Text(state, style=STYLES[run["state"]])}


def studies(lines: Sequence[dict[str, Any]], root: Path) -> list[str]:
    """A sentence for each study: how many runs it has trained, how many are complete, and how to see its report."""
    members: dict[Path, list[str]] = {}
    for run in lines:
        if not is_run_of_study(Path(run["run"])):
            continue
        inside = [folder for folder in Path(run["run"]).parents if folder == root or root in folder.parents]
        for folder in (folder for folder in inside if (folder / STUDY).is_file()):
            members.setdefault(folder, []).append(run["state"])
    return [
        f"study {folder}: {counted(len(states), 'runs')}, {states.count('complete')} complete. "
        f"Its table: anyformer report {shlex.quote(str(folder))}"
        for folder, states in sorted(members.items())
    ]
