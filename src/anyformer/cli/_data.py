"""The data card: what a target and its overrides mean, and what the doctor found, for a screen or a program."""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np
from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from anyformer.cli._screen import human, share
from anyformer.cli._toml import inline
from anyformer.core import decode
from anyformer.core.discovery import discover
from anyformer.core.fields import did_you_mean
from anyformer.core.paths import assign, parse_override, split
from anyformer.data.checks.diagnosis import Diagnosis
from anyformer.data.guess import HUB, guess
from anyformer.data.pipeline import DataSpec
from anyformer.data.record import SourceSpec
from anyformer.data.synthetic.task import Task
from anyformer.errors import DataError

QUANTILES = {"min": 0.0, "p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
BINS, BAR = 12, 40
LONGEST_SAMPLE = 300
TRAINED_ON = 1_000_000  # bytes: enough to count tokens, and done in a second


def resolve(target: str, overrides: Sequence[str]) -> DataSpec:
    """A path or a built-in source, with overrides on top; `data.` before a key is what a recipe says."""
    given = [(key.removeprefix("data."), value) for key, value in map(parse_override, overrides)]
    given.sort(key=lambda pair: (len(split(pair[0])), split(pair[0])[-1] != "kind"))
    if any(key == "source.kind" for key, _ in given):
        source: dict[str, Any] = {"path": target}
    else:
        source = _source(target).to_dict()
    tree: dict[str, Any] = {"source": source, "sample_bytes": TRAINED_ON}
    tree["tokenizer"] = {"kind": "word" if _is_task(source.get("kind")) else "bpe"}
    for key, value in given:
        assign(tree, key, value)
    return decode(DataSpec, tree)


def _source(target: str) -> SourceSpec:
    if Path(target).exists() or target.startswith(HUB):
        return guess(target)
    built_in = _built_in()
    if target in built_in:
        return decode(SourceSpec, {"kind": target})
    try:
        return guess(target)
    except DataError as error:
        near = did_you_mean(target, built_in) if "/" not in target and "." not in target else ""
        raise DataError(f"{error}{near and f' Nor is it a built-in source.{near}'}") from None


def _built_in() -> list[str]:
    """The sources that need not be told anything."""
    discover()
    ours = SourceSpec.kinds.items()
    return [
        kind for kind, cls in ours if all((it.default, it.default_factory) != (MISSING, MISSING) for it in fields(cls))
    ]


def _is_task(kind: Any) -> bool:
    return kind in SourceSpec.kinds and issubclass(SourceSpec.kinds[kind], Task)


def to_dict(found: Diagnosis) -> dict[str, Any]:
    """What `data --json` prints."""
    return {
        "source": found.spec.source.to_dict(),
        "tokenizer": found.spec.tokenizer.to_dict(),
        "vocabulary": found.vocabulary,
        "records": found.records,
        "characters": found.characters,
        "tokens": found.tokens,
        "sampled": found.sampled,
        "splits": found.splits,
        "overlap": found.overlap,
        "lengths": {side: _quantiles(sizes) for side, sizes in found.lengths.items()},
        "labels": list(found.contents.classes),
        "warnings": [{"check": it.check, "text": it.text, "where": list(it.where)} for it in found.findings],
        "samples": found.samples,
    }


def _quantiles(sizes: Sequence[int]) -> dict[str, float]:
    found = {name: int(np.quantile(sizes, at, method="higher")) for name, at in QUANTILES.items()}
    return {**found, "mean": round(float(np.mean(sizes)), 2)}


def summary(found: Diagnosis) -> Table:
    """What was understood."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(found):
        table.add_row(name, value if isinstance(value, Text) else Text(visible(value)))
    return table


def _rows(found: Diagnosis) -> Iterator[tuple[str, str | Text]]:
    spec, contents, whole = found.spec, found.contents, found.sampled == found.records
    options = [f"{key}={inline(value)}" for key, value in _told(spec.source).items()]
    yield "source", Text.assemble((spec.source.kind, "bold cyan"), "  ", visible("  ".join(options)))
    what = "pairs" if contents.pair else "questions" if contents.choices else "records"
    yield what, f"{found.records:,}, {human(found.characters)} characters"
    said = f"{found.tokens:,}" if whole else f"about {human(found.tokens)}"
    sampled = "" if whole else f"; from a sample of {found.sampled:,}"
    yield "tokens", f"{said} ({spec.tokenizer.kind}, vocabulary {found.vocabulary:,}{sampled})"
    if contents.classes:
        yield "labels", _some(contents.classes)
    elif contents.numbers:
        yield "labels", "numbers"
    if contents.tags:
        yield "tags", _some(contents.tags)
    how = "given" if found.given else "by group" if spec.split == "group" else f"cut off: {spec.valid:.0%}"
    yield "splits", "  ".join(f"{name} {count:,}" for name, count in found.splits.items()) + f"  ({how})"
    train = found.splits.get("train", 0)
    copies = f"{found.overlap:,} training records ({share(found.overlap, train)}) are held out, too: left out"
    yield "overlap", copies if found.overlap else "none: no held-out text stands in training"


def _told(source: SourceSpec) -> dict[str, Any]:
    """Of a source that was guessed, what was guessed; of a built-in one, all that can be changed."""
    plain = {key: value for key, value in source.to_dict().items() if key != "kind"}
    if source.kind in _built_in():
        return plain
    usual = {field.name: field.default for field in fields(source)}
    return {key: value for key, value in plain.items() if value != usual[key]}


def _some(names: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(names[:most]) + (", ..." if len(names) > most else "")
    return f"{len(names):,}: {shown}"


def histogram(found: Diagnosis) -> RenderableType:
    """Lengths as bars, a column for each side of a pair."""
    sides = found.lengths
    edges = _edges(min(map(min, sides.values())), max(map(max, sides.values())))
    counts = {side: np.histogram(sizes, [*edges, edges[-1] + 1e18])[0].tolist() for side, sizes in sides.items()}
    table, width = Table.grid(padding=(0, 2, 0, 0)), BAR // len(sides)
    table.add_column(justify="right", style="dim", no_wrap=True)
    for _ in sides:
        table.add_column(width=width)
        table.add_column(justify="right", style="dim", no_wrap=True)
    if len(sides) > 1:
        table.add_row("", *(cell for side in sides for cell in (Text(side, style="cyan"), "")))
    for index, low in enumerate(edges):
        high = edges[index + 1] - 1 if index + 1 < len(edges) else max(map(max, sides.values()))
        cells: list[RenderableType] = [f"{low:,}" if low >= high else f"{low:,} - {high:,}"]
        for side in sides:
            count = counts[side][index]
            cells += [Bar(max(counts[side]), 0, count, width=width, color="cyan"), f"{count:,}" if count else ""]
        table.add_row(*cells)
    title = Text.assemble(("length ", "bold"), ("of a record in tokens", "dim"))
    return Group(title, Padding(table, (0, 0, 0, 2), expand=False), *map(_usual, sides.items()))


def _usual(side: tuple[str, Sequence[int]]) -> Text:
    name, sizes = side
    at = _quantiles(sizes)
    told = f"half have at most {at['p50']:,}, 95% at most {at['p95']:,}, the longest {at['max']:,}"
    return Text(f"  {name}: {told}", style="dim")


def _edges(low: int, high: int) -> list[int]:
    """The lower ends of the bins: even where lengths are of one size, else each twice as wide as the one before."""
    if high - low < BINS:
        return list(range(low, high + 1))
    if high <= 8 * max(low, 1):
        step = -(-(high - low + 1) // BINS)
        return list(range(low, high + 1, step))
    powers = [1 << power for power in range(high.bit_length()) if 2 << power > low]
    return ([0] if low == 0 else []) + powers


def samples(found: Diagnosis) -> RenderableType:
    """Records as the model will read them."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for sample in found.samples:
        for name, value in sample.items():
            cut = value if len(value) <= LONGEST_SAMPLE else value[: LONGEST_SAMPLE - 4] + " ..."
            table.add_row("" if name == "where" else name, Text(visible(cut), style="dim" if name == "where" else ""))
    title = Text.assemble(("samples ", "bold"), ("encoded and decoded", "dim"))
    return Group(title, Padding(table, (0, 0, 0, 2), expand=False))


def complaints(found: Diagnosis) -> RenderableType:
    """The warnings, each with its first places."""
    if not found.findings:
        return Text("No warnings.", style="green")
    lines: list[RenderableType] = [Text(f"{len(found.findings)} warnings", style="bold yellow")]
    if len(found.findings) == 1:
        lines = [Text("1 warning", style="bold yellow")]
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="yellow", no_wrap=True)
    table.add_column(overflow="fold")
    for finding in found.findings:
        table.add_row(finding.check, Text(visible(finding.text)))
        for where in finding.where:
            table.add_row("", Text(visible(where), style="dim"))
    return Group(*lines, Padding(table, (0, 0, 0, 2), expand=False))


def visible(text: str) -> str:
    """Control characters, and those that turn the direction of writing, spelt out: data must not drive a terminal."""
    return "".join(_spelt(letter) if unicodedata.category(letter)[0] == "C" else letter for letter in text)


def _spelt(letter: str) -> str:
    return letter.encode("unicode_escape").decode()
