"""The report of a run, finished or not, as HTML or Markdown."""

import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

import anyformer
from anyformer.core.discovery import program
from anyformer.core.fields import leaves
from anyformer.core.plain_data import inline
from anyformer.core.readable_numbers import clock, counted, human, human_bytes, human_flops, listed
from anyformer.disk import CHECKPOINTS, by_step, store
from anyformer.reporting import pages
from anyformer.reporting.pages import VALID, Chart, Curve, svgs
from anyformer.reporting.run_facts import MEASURED, RunFacts
from anyformer.reporting.run_files import Facts, dig, finite
from anyformer.reporting.shrink_table import origin_sentence, shrink_table

PAGE = "report.html"
TEMPLATE = "run"
SHORT_S = 180


class ReportRow(NamedTuple):
    """A row of a table in the report."""

    name: str
    value: str
    note: str = ""


def write_report(folder: str | Path, out: Path | None = None) -> Path:
    """Writes the report of a run to `out`, by default into its folder; as Markdown if the name ends in .md."""
    facts = RunFacts.of(folder)
    path = out or Path(folder) / PAGE
    return store(path, run_markdown(facts) if path.suffix == ".md" else run_html(facts))


def run_html(facts: RunFacts) -> str:
    """The report as self-contained HTML."""
    loss, others = ([chart for chart in charts(facts) if not chart.empty] for charts in (loss_charts, other_charts))
    pictures = [Markup(picture) for picture in svgs([*loss, *others])]
    more = [(chart.title, picture) for chart, picture in zip(others, pictures[len(loss) :], strict=True)]
    return pages.html(TEMPLATE, {**report_content(facts), "loss_charts": pictures[: len(loss)], "charts": more})


def run_markdown(facts: RunFacts) -> str:
    """The report as Markdown, without charts."""
    return pages.markdown(TEMPLATE, report_content(facts))


def loss_charts(facts: RunFacts) -> Iterator[Chart]:
    """The loss by step, token, FLOP and time."""
    train, valid = facts.points(facts.trained), facts.points(facts.validated)
    seconds = max((point.wall_s for point in train), default=0.0) < SHORT_S
    losses, valid_losses = _column(facts.trained, "loss"), _column(facts.validated, "valid_loss")
    best = [facts.best] if facts.validated else []
    axes = [("step", "step"), ("tokens", "token"), ("flops", "FLOP"), ("wall_s", "second" if seconds else "minute")]
    for axis, word in axes if facts.prediction is not None else [pair for pair in axes if pair[0] != "flops"]:
        x_train, x_valid = ([float(getattr(point, axis) or 0.0) for point in points] for points in (train, valid))
        curves = [Curve("train", x_train, losses)]
        if valid:
            curves.append(Curve("validation", x_valid, valid_losses, VALID, marked=True))
        label, scale = word if word == "FLOP" else f"{word}s", 1 / 60 if word == "minute" else 1.0
        marks = [float(getattr(point, axis) or 0.0) for point in facts.points(best)]
        yield Chart(f"Loss by {word}", label, "loss", curves, marks, x_scale=scale)


def other_charts(facts: RunFacts) -> Iterator[Chart]:
    """Charts of gradient norm, learning rate, throughput and peak memory by step."""
    steps, skipped = [float(line["step"]) for line in facts.trained], [float(line["step"]) for line in facts.skipped]
    columns = {name: _column(facts.trained, name) for name in MEASURED}
    unit = ("GiB", 1 << 30) if max(columns["peak_bytes"], default=0.0) >= 1 << 30 else ("MiB", 1 << 20)
    columns["peak"] = [value / unit[1] for value in columns["peak_bytes"]]
    for name, title, label in (
        ("gradient_norm", "Gradient norm, before clipping", "norm"),
        ("lr", "Learning rate", "learning rate"),
        ("tokens_per_s", "Throughput", "tokens per second"),
        ("peak", "Peak memory", unit[0]),
    ):
        measured = name in ("tokens_per_s", "peak")
        marks = skipped if name == "gradient_norm" else ()
        yield Chart(title, "steps", label, [Curve(name, steps, columns[name])], marks, from_zero=measured)


def report_content(facts: RunFacts) -> dict[str, Any]:
    """The variables of the templates, formatted as text."""
    files, folder = facts.files, shlex.quote(str(facts.files.folder))
    values = [ReportRow(key, inline(value), str(files.sources.get(key, ""))) for key, value in leaves(files.recipe)]
    return {
        "name": facts.name,
        "state": files.state,
        "state_text": "is still going" if files.state == "running" else files.state,
        "sentence": facts.sentence,
        "why": str(files.events[-1].facts.get("why", "")) if files.state == "failed" else "",
        "tiles": list(_tiles(facts)),
        "validated": bool(facts.validated),
        "evaluations": list(_evaluations(facts)),
        "origin": origin_sentence(files.shrunk) if files.shrunk else "",
        "shrunk": shrink_table(_table(files.shrunk)) if files.shrunk else None,
        "skipped": [ReportRow(f"step {line['step']}", str(line.get("status"))) for line in facts.skipped],
        "samples": list(reversed(files.samples)),
        "costs": list(_costs(facts)),
        "precision": facts.precision,
        "on_gpu": files.environment.get("device") == "cuda",
        "splits": _splits(facts),
        "data": list(_data(facts)),
        "chosen": [row for row in values if row.note and row.note != "default"],
        "values": values,
        "recipe": files.recipe_text.strip(),
        "environment": [ReportRow(key, str(value)) for key, value in files.environment.items() if key != "data"],
        "events": [
            ReportRow(event.time, event.what, ", ".join(f"{key} {value}" for key, value in event.facts.items()))
            for event in files.events
        ],
        "again": f"{program()} train {folder}/recipe.toml --out {shlex.quote(f'{files.folder}-again')}",
        "resume": f"{program()} train {folder} --resume",
        "version": anyformer.__version__,
    }


def _table(shrunk: Facts) -> dict[str, Facts]:
    """The measurements in shrunk.json, by run."""
    table = shrunk.get("table")
    return {name: row for name, row in table.items() if isinstance(row, dict)} if isinstance(table, dict) else {}


def _tiles(facts: RunFacts) -> Iterator[ReportRow]:
    if facts.validated:
        final, best = facts.validated[-1], facts.best
        saved = best["step"] in by_step(facts.files.folder / CHECKPOINTS)
        note = f"best checkpoint, step {best['step']:,}" if saved else f"at step {best['step']:,}"
        end = "" if best is final else f"; {final['valid_loss']:.4f} at the end"
        yield ReportRow("best validation loss", f"{best['valid_loss']:.4f}", note + end)
    if facts.perplexity is not None:
        yield ReportRow("perplexity", f"{facts.perplexity:,.1f}", "best validation")
    if facts.trained:
        loss = finite(facts.last.get("loss"))
        text = "not a number" if loss is None else f"{loss:.4f}"
        yield ReportRow("training loss", text, f"at step {facts.last['step']:,}")
    yield ReportRow("steps", f"{facts.step:,}", f"of {facts.files.steps:,}" if facts.files.steps else "")
    if tokens := facts.last.get("tokens"):
        yield ReportRow("tokens", human(tokens), f"{tokens:,}")
    if wall := facts.last.get("wall_s"):
        yield ReportRow("time", clock(wall), "in the loop")
    if facts.parameters:
        yield ReportRow("parameters", human(facts.parameters), f"{facts.parameters:,}")


class StoredScores(NamedTuple):
    """The scores of a split, and how they compare with those of yardsticks, one sentence each."""

    title: str
    rows: list[ReportRow]
    yardsticks: list[str]


def _evaluations(facts: RunFacts) -> Iterator[StoredScores]:
    for split, stored in facts.files.evaluations.items():
        scores, yardsticks = stored.get("scores"), stored.get("yardsticks")
        rows = []
        for name, score in scores.items() if isinstance(scores, dict) else ():
            if (value := finite(dig(score, "value"))) is not None:
                low, high = (finite(dig(score, end)) for end in ("low", "high"))
                interval = "" if low is None or high is None else f"{low:.4f} to {high:.4f}"
                rows.append(ReportRow(name, f"{value:.4f}", interval))
        beside = [entry for entry in yardsticks if dig(entry, "sentence")] if isinstance(yardsticks, list) else []
        sentences = [f"{entry.get('score')}: {entry['sentence']}" for entry in beside]
        yield StoredScores(
            f"{split}, {counted(stored.get('records') or 0, 'records')}; {stored.get('checkpoint')}", rows, sentences
        )


def _costs(facts: RunFacts) -> Iterator[tuple[str, str, str]]:
    """Rows of quantity, predicted value and measured value."""
    card, last = facts.prediction, facts.last
    stored = facts.files.params
    if card is None:
        return
    yield "parameters", f"{card.params:,}", f"{stored:,} stored" if stored else ""
    peak = last.get("peak_bytes")
    yield "training memory", human_bytes(card.bytes), ""
    yield "of it weights, gradients, moments", human_bytes(card.kept_bytes), ""
    yield "of it activations", human_bytes(card.activation_bytes), ""
    yield "peak memory (of tensors on a GPU, of the process on a CPU)", "", human_bytes(peak) if peak else ""
    reached = f"{human_flops(facts.flops_per_s)}/s reached" if facts.flops_per_s else ""
    yield "compute of a step", human_flops(card.step_flops), reached
    total = human_flops(card.step_flops * facts.files.steps) if facts.files.steps else ""
    spent = f"{human_flops(card.step_flops * facts.step)} in {counted(facts.step, 'steps')}" if facts.step else ""
    yield "compute of the run", total, spent


def _splits(facts: RunFacts) -> list[dict[str, Any]]:
    splits = dig(facts.files.environment, "data", "splits")
    if not isinstance(splits, dict):
        return []
    rows = [{"split": name, **{key: f"{value:,}" for key, value in counts.items()}} for name, counts in splits.items()]
    pairs = [{"tokens": f"{row['source']} source, {row['tokens']} target"} if "source" in row else {} for row in rows]
    return [{**row, **both} for row, both in zip(rows, pairs, strict=True)]


def _data(facts: RunFacts) -> Iterator[ReportRow]:
    recipe, environment = facts.files.recipe.get("data"), facts.files.environment
    if not isinstance(recipe, dict):
        return
    for part in ("source", "tokenizer"):
        table = recipe.get(part)
        if isinstance(table, dict):
            rest = ", ".join(f"{key} = {inline(value)}" for key, value in table.items() if key != "kind")
            yield ReportRow(part, str(table.get("kind", "")), rest)
    packing = dig(environment, "data", "packing", "kind") or dig(environment, "data", "packing") or ""
    yield ReportRow("context", f"{recipe.get('context', '')} tokens", str(packing))
    if classes := dig(environment, "data", "contents", "classes"):
        yield ReportRow("classes", str(len(classes)), listed(list(map(str, classes)), 20))


def _column(lines: Sequence[Facts], name: str) -> list[float]:
    values = (line.get(name) for line in lines)
    return [float(value) if isinstance(value, int | float) else math.nan for value in values]
