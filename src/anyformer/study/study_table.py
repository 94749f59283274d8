"""The table of a study as text: the columns of a modification study, and the difference from the baseline."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from anyformer.statistics.intervals import Interval
from anyformer.statistics.power import MOST, Needed
from anyformer.statistics.readable_numbers import human, human_bytes, human_flops

if TYPE_CHECKING:  # study_results imports this module
    from anyformer.study.study_results import ArmResult, Results

MINUS = "\N{MINUS SIGN}"
JUDGED = ("difference (95 %)", "p", "effect", "seeds needed", "runs")
"""Headings of the columns with the statistical comparison."""
Row = dict[str, str]
"""Heading -> text."""


def rows(results: "Results") -> list[Row]:
    """A row for each arm, the baseline first; without p, effect and seeds needed if there are too few seeds."""
    return [
        {
            "arm": arm.name,
            **_costs(arm),
            **_losses(arm),
            **_scores(arm, results.folder.tasks),
            **_judged(arm, results.is_look),
            "runs": _runs(arm),
        }
        for arm in results.arms
    ]


def text_table(results: "Results") -> str:
    """The table that belongs to the verdict, in aligned columns of plain text."""
    table = [narrow(row, results.metric) for row in rows(results)]
    headings = list(dict.fromkeys(name for row in table for name in row))
    lines = [headings, *([row.get(name, "") for name in headings] for row in table)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def narrow(row: Row, metric: str) -> Row:
    """The columns of a row that belong to the verdict."""
    columns = ("arm", "params", metric.replace("_", " "), *JUDGED)
    return {name: text for name, text in row.items() if name in columns}


def measured(row: Row) -> Row:
    """The columns of a row with the costs and the losses of an arm."""
    return {name: text for name, text in row.items() if name not in JUDGED}


def _costs(arm: "ArmResult") -> Row:
    return {
        "params": human(arm.arm.budgets.params),
        "ops": human_flops(arm.arm.train_flops) if arm.arm.train_flops else "",
        "steps/s": number(arm.mean("steps_per_s").value, 3),
        "memory": human_bytes(arm.memory_bytes),
    }


def _losses(arm: "ArmResult") -> Row:
    return {name.replace("_", " "): spread(arm.mean(name)) for name in ("early_loss", "valid_loss", "test_loss")}


def _scores(arm: "ArmResult", tasks: Mapping[str, str]) -> Row:
    """The scores of downstream tasks."""
    return {f"{task} {metric}": spread(arm.score(task)) for task, metric in tasks.items()}


def _judged(arm: "ArmResult", look: bool) -> Row:
    one = arm.difference
    row = {"difference (95 %)": "baseline" if one is None else difference(one.interval)}
    if look:
        return row
    p = "" if one is None else "too few" if one.p is None else f"{one.p:.2g}"
    effect = "" if one is None or one.effect is None else signed(one.effect, 2)
    return {**row, "p": p, "effect": effect, "seeds needed": needed(one.needed) if one and one.needed else ""}


def _runs(arm: "ArmResult") -> str:
    finished, broken = len(arm.runs) - len(arm.failed), [run for run in arm.failed if run.state == "failed"]
    if not arm.failed:
        return str(finished)
    return f"{finished} of {len(arm.runs)}" + (f", {len(broken)} failed" if broken else "")


def needed(estimate: Needed) -> str:
    """The total number of seeds that a verdict would need, with its interval."""
    if estimate.seeds >= MOST:
        return f"{estimate.low} or more"
    end = f"{estimate.high}" if estimate.high < MOST else "?"
    return f"{estimate.seeds} ({estimate.low}-{end})"


def spread(interval: Interval) -> str:
    """Formats a mean with half the width of its interval: 3.214 ±0.012."""
    if not math.isfinite(interval.value):
        return ""
    half = "" if interval.high is None else f" ±{interval.high - interval.value:.2g}"
    return f"{interval.value:.3f}{half}"


def difference(interval: Interval) -> str:
    """Formats a difference with its interval: +0.12 (+0.05 to +0.19)."""
    if not math.isfinite(interval.value):
        return "unknown"
    if interval.low is None or interval.high is None:
        return f"{signed(interval.value)} (no interval)"
    places = 3 if max(abs(interval.low), abs(interval.high)) >= 0.01 else 6
    value, low, high = (
        f"{bound:+.{places}f}".replace("-", MINUS) for bound in (interval.value, interval.low, interval.high)
    )
    return f"{value} ({low} to {high})"


def signed(value: float, digits: int = 3) -> str:
    return f"{value:+.{digits}g}".replace("-", MINUS)


def number(value: float, digits: int) -> str:
    return f"{value:.{digits}g}" if math.isfinite(value) else ""
