"""Run folders as a table. Reads JSON and TOML with the standard library alone: no torch, however many there are."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from anyformer.cli.output.screen import human, visible
from anyformer.reporting.run_files import RunFiles, dig, run_folders

WIDE = 110
STYLES = {"running": "bold cyan", "complete": "green", "failed": "red", "interrupted": "yellow", "unreadable": "red"}


def find(root: Path) -> list[dict[str, Any]]:
    """What is known of every run, the newest first."""
    found = [RunFiles(folder) for folder in run_folders(root)]
    return [line(run) for run in sorted(found, key=lambda run: run.changed, reverse=True)]


def line(run: RunFiles) -> dict[str, Any]:
    """What `runs --json` prints of one."""
    trained = [it for it in run.last_metrics if "loss" in it]
    valid = [it["valid_loss"] for it in run.last_metrics if _is_finite(it.get("valid_loss"))]
    saved = run.progress.get("best")
    last: Any = trained[-1] if trained else {}
    loss = last.get("loss")
    return {
        "run": str(run.folder),
        "model": dig(run.recipe, "model", "kind"),
        "params": run.params,
        "objective": dig(run.recipe, "objective", "kind"),
        "data": dig(run.recipe, "data", "source", "kind"),
        "step": last.get("step", run.progress.get("step", 0)),
        "steps": _steps(run),
        "train_loss": loss if _is_finite(loss) else None,
        "valid_loss": valid[-1] if valid else None,
        "best_valid_loss": min([*valid, *([saved] if _is_finite(saved) else [])], default=None),
        "state": run.state,
        "age_s": round(max(0.0, time.time() - run.changed)),
    }


def table(lines: Sequence[dict[str, Any]], root: Path, width: int) -> Table:
    """The same for people: names below `root`, and as much as fits on so many columns."""
    found = Table(box=None, padding=(0, 2 if width >= WIDE else 1, 0, 0), header_style="dim", pad_edge=False)
    found.add_column("run", overflow="fold")
    for name in ("model", "task") if width >= WIDE else ("model",):
        found.add_column(name, overflow="fold", style="dim" if name == "task" else None)
    for name in ("step", "loss", "best valid"):
        found.add_column(name, justify="right", no_wrap=True)
    found.add_column("", no_wrap=True)
    found.add_column("age", justify="right", no_wrap=True)
    for it in lines:
        size = f" {human(it['params'])}" if it["params"] and width >= WIDE else ""
        task = [f"{it['objective'] or '?'}, {it['data'] or '?'}"] if width >= WIDE else []
        step = f"{it['step']}/{it['steps']}" if it["steps"] else str(it["step"])
        name = it["run"] if Path(it["run"]) == root else str(Path(it["run"]).relative_to(root))
        texts = [
            name,
            f"{it['model'] or '?'}{size}",
            *task,
            step,
            _loss(it["train_loss"]),
            _loss(it["best_valid_loss"]),
        ]
        state = Text(it["state"], style=STYLES[it["state"]])
        found.add_row(*(Text(visible(text)) for text in texts), state, _age(it["age_s"]))
    return found


def _steps(run: RunFiles) -> int | None:
    started = next((event for event in run.events if event.what == "started"), None)
    found = started.facts.get("steps") if started else dig(run.recipe, "train", "steps")
    return found if isinstance(found, int) else None


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
