"""The data card: a target with its overrides as a DataSpec, and its diagnosis as tables or JSON."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import groupby
from typing import Any

import numpy as np
from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from anyformer.cli.output.screen import pairs, share, visible
from anyformer.core import decode
from anyformer.core.plain_data import inline, parse_override, split
from anyformer.core.readable_numbers import counted, human, listed
from anyformer.data.checks.diagnosis import Diagnosis
from anyformer.data.preparation.pipeline import DataSpec
from anyformer.data.record import SourceSpec
from anyformer.data.sources.named_source import built_in
from anyformer.data.synthetic.task import SyntheticTask
from anyformer.data.tokenizers.tokenizer import TokenizerSpec
from anyformer.errors import SpecError
from anyformer.training.recipes.resolve import data_of, draft

QUANTILES = {"min": 0.0, "p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
BINS, BAR = 12, 40
LONGEST_SAMPLE, LINES, NAMED = 300, 8, 6


def resolve(target: str, overrides: Sequence[str]) -> DataSpec:
    """The DataSpec that `train` would use for a target; keys may have the prefix `data.` as in a recipe."""
    _check_top([(key.removeprefix("data."), value) for key, value in map(parse_override, overrides)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the diagnosis reads the data again, and lists what they warn about
        return data_of(draft(target, [f"data.{override.strip().removeprefix('data.')}" for override in overrides]))


def _check_top(settings: Sequence[tuple[str, Any]]) -> None:
    """Rejects unknown top-level keys before any data is read, and names the section that a misplaced key belongs to."""
    top = {
        key[0]: value
        for key, value in ((split(key), value) for key, value in settings)
        if len(key) == 1 or key[0] not in ("source", "tokenizer")
    }
    for section, family in (("source", SourceSpec), ("tokenizer", TokenizerSpec)):
        family.load_kinds()
        inside = {field.name for kind in family.kinds.values() for field in fields(kind)}
        for key in inside & top.keys() - {field.name for field in fields(DataSpec)}:
            raise SpecError(f"{key}: is a key of {section}. Write {section}.{key}={inline(top[key])}")
    decode(DataSpec, {"source": {"kind": "python_topics"}, "tokenizer": {"kind": "byte"}, **top})


def to_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """The output of `data --json`."""
    source = diagnosis.spec.source
    return {
        "source": source.to_dict(),
        "tokenizer": diagnosis.spec.tokenizer.to_dict(),
        "vocabulary": diagnosis.vocabulary,
        "records": diagnosis.records,
        "characters": diagnosis.characters,
        "tokens": diagnosis.tokens,
        "sampled": diagnosis.sampled,
        "splits": diagnosis.splits,
        "overlap": diagnosis.overlap,
        "lengths": {side: _quantiles(sizes) for side, sizes in diagnosis.lengths.items()},
        "labels": list(diagnosis.contents.classes),
        "task": {"chance": source.chance, "lag": source.lag} if isinstance(source, SyntheticTask) else None,
        "warnings": [
            {"check": finding.check, "text": finding.text, "where": list(finding.where)}
            for finding in diagnosis.findings
        ],
        "samples": diagnosis.samples,
    }


def _quantiles(sizes: Sequence[int]) -> dict[str, float]:
    quantiles = {name: int(np.quantile(sizes, at, method="higher")) for name, at in QUANTILES.items()}
    return {**quantiles, "mean": round(float(np.mean(sizes)), 2)}


def summary(diagnosis: Diagnosis) -> RenderableType:
    """A table of source, tokenizer, labels and splits."""
    rows = ((name, value if isinstance(value, Text) else visible(value)) for name, value in _rows(diagnosis))
    return pairs(rows, style="dim")


def _rows(diagnosis: Diagnosis) -> Iterator[tuple[str, str | Text]]:
    spec, contents, all_read = diagnosis.spec, diagnosis.contents, diagnosis.sampled == diagnosis.records
    options = [f"{key}={inline(value)}" for key, value in _shown_options(spec.source).items()]
    yield "source", Text.assemble((spec.source.kind, "bold cyan"), "  ", visible("  ".join(options)))
    what = "pairs" if contents.pair else "questions" if contents.choices else "records"
    yield what, f"{diagnosis.records:,}, {human(diagnosis.characters)} characters"
    tokens = f"{diagnosis.tokens:,}" if all_read else f"about {human(diagnosis.tokens)}"
    sampled = "" if all_read else f"; from a sample of {diagnosis.sampled:,}"
    yield "tokens", f"{tokens} ({spec.tokenizer.kind}, vocabulary {diagnosis.vocabulary:,}{sampled})"
    if isinstance(spec.source, SyntheticTask):
        chance, lag = spec.source.chance, spec.source.lag
        yield (
            "task",
            f"guessing is right {chance:.1%} of the time; dependencies reach up to {counted(lag, 'tokens')} back",
        )
    if contents.classes:
        shares = {name: 100 * count / diagnosis.records for name, count in diagnosis.labels.items()}
        yield "labels", _some([f"{name} ({percent:.1f}%)" for name, percent in shares.items()])
    elif contents.numbers:
        yield "labels", "numbers"
    if contents.tags:
        yield "tags", _some(contents.tags)
    counts = {**diagnosis.splits, **{name: 0 for name in diagnosis.cut_off if name not in diagnosis.splits}}
    cut = [f"{name}: {100 * part:.3g}% of the {diagnosis.unit}" for name, part in diagnosis.cut_off.items()]
    how = ", ".join([*(["given"] if diagnosis.split_by_source else []), *cut]) or "nothing is held out"
    yield "splits", "  ".join(f"{name} {count:,}" for name, count in counts.items()) + f"  ({how})"
    train = diagnosis.splits.get("train", 0)
    copies = f"{diagnosis.overlap:,} training records ({share(diagnosis.overlap, train)}) are also held out: left out"
    none = "none: no held-out text is also a training text"
    in_parts = any(finding.check == "overlap" for finding in diagnosis.findings)
    others = "no whole records, but parts of held-out texts are in training: see the warning" if in_parts else none
    yield "overlap", copies if diagnosis.overlap else others


def _shown_options(source: SourceSpec) -> dict[str, Any]:
    """Options to show: non-default options; for a built-in source, all options."""
    plain = {key: value for key, value in source.to_dict().items() if key != "kind"}
    if source.kind in built_in():
        return plain
    usual = {field.name: field.default for field in fields(source)}
    return {key: value for key, value in plain.items() if value not in (usual[key], [])}


def _some(names: Sequence[str]) -> str:
    """The number of names, and the first of them."""
    return f"{len(names):,}: {listed(names, NAMED)}"


def histogram(diagnosis: Diagnosis) -> RenderableType:
    """A histogram of record lengths, with one column of bars for each side of a pair."""
    sides = diagnosis.lengths
    edges = _edges(min(map(min, sides.values())), max(map(max, sides.values())))
    counts = {side: np.histogram(sizes, [*edges, edges[-1] + 1e18])[0].tolist() for side, sizes in sides.items()}
    table, width = Table.grid(padding=(0, 2, 0, 0)), BAR // len(sides)
    table.add_column(justify="right", style="dim", no_wrap=True)
    for _ in sides:
        table.add_column(width=width)
        table.add_column(justify="right", style="dim", no_wrap=True)
    if len(sides) > 1:
        table.add_row("", *(cell for side in sides for cell in (Text(side, style="cyan"), "")))
    highs = [*(edge - 1 for edge in edges[1:]), max(map(max, sides.values()))]
    for is_empty, run in groupby(range(len(edges)), lambda index: not any(bins[index] for bins in counts.values())):
        indices = list(run)
        if is_empty and len(indices) > 2:
            table.add_row("...")
            continue
        for index in indices:
            low, high = edges[index], highs[index]
            cells: list[RenderableType] = [f"{low:,}" if low >= high else f"{low:,} - {high:,}"]
            for bins in counts.values():
                count = bins[index]
                cells += [Bar(max(bins), 0, count, width=width, color="cyan"), f"{count:,}" if count else ""]
            table.add_row(*cells)
    title = Text.assemble(("length ", "bold"), ("of a record in tokens", "dim"))
    quantiles = {side: _quantiles(sizes) for side, sizes in sides.items()}
    notes = [
        f"  {side}: half have at most {at['p50']:,}, 95% at most {at['p95']:,}, the longest {at['max']:,}"
        for side, at in quantiles.items()
    ]
    return Group(title, Padding(table, (0, 0, 0, 2), expand=False), *(Text(note, style="dim") for note in notes))


def _edges(low: int, high: int) -> list[int]:
    """The lower edges of the bins: of equal width if lengths are similar, otherwise doubling."""
    if high - low < BINS:
        return list(range(low, high + 1))
    if high <= 8 * max(low, 1):
        step = -(-(high - low + 1) // BINS)
        return list(range(low, high + 1, step))
    powers = [1 << power for power in range(high.bit_length()) if 2 << power > low]
    return ([0] if low == 0 else []) + powers


def samples(diagnosis: Diagnosis) -> RenderableType:
    """Sample records, encoded and decoded by the tokenizer."""
    rows: list[tuple[str, Text]] = []
    for sample in diagnosis.samples:
        rows += [("", Text())] if rows else []
        for name, value in sample.items():
            place = name == "where"
            rows.append(("" if place else name, Text(_beginning(value), style="dim" if place else "")))
    return Group(Text.assemble(("samples ", "bold"), ("encoded and decoded", "dim")), pairs(rows, indent=2))


def _beginning(text: str) -> str:
    """The beginning of a text with its line breaks and visible control characters."""
    cut = text if len(text) <= LONGEST_SAMPLE else text[: LONGEST_SAMPLE - 4] + " ..."
    lines = cut.split("\n")
    return "\n".join(map(visible, lines if len(lines) <= LINES else [*lines[:LINES], "..."]))


def complaints(diagnosis: Diagnosis) -> RenderableType:
    """The warnings, each with the first locations where it applies."""
    if not diagnosis.findings:
        return Text("No warnings.", style="green")
    rows: list[tuple[str, Text]] = []
    for finding in diagnosis.findings:
        rows.append((finding.check, Text(visible(finding.text))))
        rows += [("", Text(visible(where), style="dim")) for where in finding.where]
    title = Text(counted(len(diagnosis.findings), "warnings"), style="bold yellow")
    return Group(title, pairs(rows, style="yellow", indent=2))
