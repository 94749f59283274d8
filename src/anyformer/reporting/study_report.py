"""The report of a study: report.html with the verdict first, report.md, and report.json with every number."""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

import anyformer
from anyformer.core.discovery import program
from anyformer.core.readable_numbers import clock, human, human_bytes, human_flops
from anyformer.disk import store
from anyformer.reporting import pages
from anyformer.reporting.pages import Chart, svg, svgs
from anyformer.reporting.run_files import RunFiles, dig
from anyformer.reporting.study_charts import InfluenceMaps, Shown, budget_chart, cost_charts, curve_charts
from anyformer.study.arm_results import ArmResult
from anyformer.study.study_folder import STUDY, StudyFolder, is_of_controls
from anyformer.study.study_record import registration_of, seconds_spent
from anyformer.study.study_results import Results, measured, narrow, rows
from anyformer.study.tuning import edge

PAGE = "report.html"
TEMPLATE = "study"
MATCHED = {
    "params": "the number of parameters",
    "flops": "operations of training",
    "time": "time of training on this machine",
    "state": "bytes of state that decoding carries along",
    "none": "nothing",
}


def write_study_report(results: Results, out: Path | None = None) -> Path:
    """Writes the report as HTML, Markdown and JSON into the study folder, or only the file `out` if given."""
    if out is not None:
        return store(out, study_markdown(results) if out.suffix == ".md" else study_html(results))
    folder = results.path
    store(folder / "report.json", json.dumps(results.to_dict(), indent=1))
    store(folder / "report.md", study_markdown(results))
    return store(folder / PAGE, study_html(results))


def study_html(results: Results) -> str:
    """The report as self-contained HTML."""
    charts = [chart for chart in curve_charts(results) if not chart.empty]
    curves = [(chart.title, Markup(picture)) for chart, picture in zip(charts, svgs(charts), strict=True)]
    by_budget = _drawn(budget_chart(results, results.curves)) if results.curves else None
    costs = [(title, Markup(picture)) for title, picture in cost_charts(results)]
    looks, shown = InfluenceMaps(results), rows(results)
    tables = {"judged": [narrow(row, results.metric) for row in shown], "measured": list(map(measured, shown))}
    seen = {"maps": list(looks.maps()), "read": looks.text, "far": _drawn(looks.distances())}
    return pages.html(
        TEMPLATE, {**_content(results), **tables, **seen, "curves": curves, "costs": costs, "by_budget": by_budget}
    )


def study_markdown(results: Results) -> str:
    """The report as Markdown, without charts."""
    return pages.markdown(TEMPLATE, _content(results))


def _content(results: Results) -> dict[str, Any]:
    """The variables of the templates, formatted as text."""
    folder, shown = results.folder, Shown(results)
    path, runs = shlex.quote(str(results.path)), [run for arm in results.arms for run in arm.runs]
    finished = [run for run in runs if run.state == "complete"]
    files = RunFiles(finished[0].folder) if finished else None
    environment = files.environment if files else {}
    farthest = f", at most {_farthest(results)} from {results.comparison.baseline}"
    return {
        "name": folder.name,
        "look": results.is_look,
        "verdict": results.conclusion,
        "remarks": results.remarks,
        "controls": [
            (one.name, one.control.expected, one.measured, "passed" if one.passed else "failed")
            for one in results.controls
        ],
        "yardsticks": [line.sentence for line in results.yardsticks],
        "repeated": [one.row for one in results.repeated],
        "tiles": _tiles(results, len(finished), len(runs)),
        "rows": rows(results),
        "colours": shown.words,
        "metric": results.comparison.metric,
        "baseline": results.comparison.baseline,
        "matched": MATCHED[results.spec.match] + (farthest if results.spec.match != "none" else ""),
        "trials": results.spec.tuning.trials,
        "sizes": [_sizing(arm) for arm in results.arms],
        "failed": list(_failed(results)),
        "later": results.folder.tasks,
        "samples": _samples(results),
        "spent": list(_spent(results, environment)),
        "registered": list(_registered(results)),
        "data": _data(files),
        "splits": [{"split": name, **counts} for name, counts in (dig(environment, "data", "splits") or {}).items()],
        "environment": [(key, str(value)) for key, value in environment.items() if key != "data"],
        "again": f"{program()} compare {path}/{STUDY} --out {shlex.quote(f'{results.path}-again')}",
        "more": f"{program()} {results.next_words}",
        "budgets": [] if results.curves is None else results.curves.rows(),
        "others": [] if results.curves is None else results.curves.other_verdicts,
        "study": (results.path / STUDY).read_text(encoding="utf-8").strip(),
        "version": anyformer.__version__,
    }


def _tiles(results: Results, finished: int, runs: int) -> list[tuple[str, str, str]]:
    unmatched = "operations differ, by up " if results.spec.match == "none" else ""
    return [
        ("arms", str(len(results.arms)), f"against {results.comparison.baseline}"),
        ("seeds", str(results.spec.seeds), "paired: the same order of data"),
        ("runs finished", f"{finished}", f"of {runs}"),
        ("matched", results.spec.match, f"{unmatched}to {_farthest(results)}"),
        ("judged by", results.comparison.metric, results.judged.basis if results.judged else "lower is better"),
    ]


def _farthest(results: Results) -> str:
    """The largest relative difference from the baseline in what is matched, and its arm: 1.4% (lstm)."""
    farthest = max(results.arms, key=lambda arm: abs(arm.arm.off))
    return f"{abs(farthest.arm.off):.1%} ({farthest.name})"


def _spent(results: Results, environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Tokens, epochs and time of the study, as pairs of a label and a text."""
    finished = [run for arm in results.arms for run in arm.runs if run.state == "complete"]
    unique = dig(environment, "data", "splits", "train", "tokens")
    if finished and unique:
        least, most = (pick(run.tokens for run in finished) for pick in (min, max))
        yield "tokens of a run", _span(least, most, human)
        yield "different tokens", human(unique)
        yield "epochs", _span(least / unique, most / unique, lambda epochs: f"{epochs:.2g}")
    if seconds := seconds_spent(results.path):
        device = environment.get("device_name") or environment.get("device") or "unknown device"
        yield "time", f"{clock(seconds)} of trials, controls and runs on {device}"


def _span(low: float, high: float, text: Callable[[float], str]) -> str:
    return text(low) if text(low) == text(high) else f"{text(low)} to {text(high)}"


def _registered(results: Results) -> Iterator[str]:
    """When the study was registered, and every setting that was changed later."""
    registration = registration_of(results.path)
    if registration is None:
        return
    yield f"Registered on {registration.at:%d %B %Y at %H:%M} UTC, before the first run: all settings in study.toml."
    now, arms = StudyFolder(results.path).document, [arm.name for arm in results.arms]
    controls, present = (study["study"].get("controls", {}) for study in (registration.study, now))
    yield from (f"Removed later: control {name}." for name in controls if name not in present)
    yield from (f"Added later: control {name}." for name in present if name not in controls)
    for key, (old, new) in registration.changed(now).items():
        one_of = (f"study.controls.{name}." for name in controls.keys() ^ present.keys())
        if not key.startswith(tuple(one_of)) and not is_of_controls(key, arms):
            yield f"Changed later: {key}, from {old} to {new}."


def _sizing(result: ArmResult) -> dict[str, Any]:
    """The size of an arm, the values that matching changed, and the learning rates that were tried."""
    arm = result.arm
    tried = [f"{rate:.2g}: {loss:.3f}" for rate, loss in result.trials.items()]
    side = edge(result.trials)
    return {
        "name": arm.name,
        "off": f"{100 * arm.off:+.1f} %",
        "params": human(arm.budgets.params),
        "training": human_flops(arm.train_flops) if arm.train_flops else "by the clock",
        "state": human_bytes(arm.budgets.state_bytes),
        "memory": human_bytes(result.memory_bytes),
        "changes": [f"{key}: {before} → {after}" for key, (before, after) in arm.changes.items()],
        "rates": tried,
        "rate": f"{result.rate:.2g}" + (f", the {side} that was tried" if side else ""),
    }


def _failed(results: Results) -> Iterator[tuple[str, str, str]]:
    """Names, state and error of the runs that failed; one line for all runs of an arm that failed alike."""
    for arm in results.arms:
        for failed in (alike for alike in arm.alike if alike[0].state != "missing"):
            seeds = ", ".join(str(run.seed) for run in failed)
            yield f"{arm.name} seed{'s' * (len(failed) > 1)} {seeds}", failed[0].state, failed[0].why
        for task, runs in arm.later.items():
            broken = [(seed, one) for seed, one in enumerate(runs) if one.state == "failed"]
            yield from ((f"{arm.name} seed {seed}, {task}", one.state, one.why) for seed, one in broken)


def _samples(results: Results) -> dict[str, list[tuple[str, str]]]:
    """Prompt -> pairs of arm and generated text, from the last samples of the first complete run of each arm."""
    texts: dict[str, list[tuple[str, str]]] = {}
    for arm in results.arms:
        run = next((run for run in arm.runs if run.state == "complete"), None)
        rounds = RunFiles(run.folder).samples if run else []
        for sample in rounds[-1].texts if rounds else ():
            texts.setdefault(str(sample.get("prompt", "")), []).append((arm.name, str(sample.get("text", ""))))
    return texts


def _drawn(chart: Chart) -> Markup:
    return Markup("" if chart.empty else svg(chart))


def _data(files: RunFiles | None) -> list[tuple[str, str]]:
    data = dig(files.recipe if files else {}, "data") or {}
    rows = [
        (part, ", ".join(f"{key} {value}" for key, value in (dig(data, part) or {}).items()))
        for part in ("source", "tokenizer")
    ]
    return [*rows, ("context", f"{dig(data, 'context') or ''} tokens")]
