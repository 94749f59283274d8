"""The data card: a target with its overrides as a DataSpec, and its diagnosis as tables or JSON."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from anyformer.cli.output.screen import human, share, visible
from anyformer.cli.output.toml_text import inline
from anyformer.core import decode
from anyformer.core.discovery import discover
from anyformer.core.paths import assign, parse_override, split
from anyformer.data.checks.diagnosis import Diagnosis
from anyformer.data.preparation.pipeline import DataSpec
from anyformer.data.record import SourceSpec
from anyformer.data.sources.named_source import built_in, source_of, usual_tokenizer
from anyformer.data.synthetic.task import SyntheticTask
from anyformer.data.tokenizers.tokenizer import TokenizerSpec
from anyformer.errors import SpecError

QUANTILES = {"min": 0.0, "p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
BINS, BAR = 12, 40
LONGEST_SAMPLE, LINES = 300, 8
TRAINED_ON = 1_000_000  # bytes for training the tokenizer: enough to count tokens, takes about a second


def resolve(target: str, overrides: Sequence[str]) -> DataSpec:
    """The DataSpec of a path or a built-in source with overrides; keys may have the prefix `data.` as in a recipe."""
    settings = [(key.removeprefix("data."), value) for key, value in map(parse_override, overrides)]
    settings.sort(key=lambda pair: (len(split(pair[0])), split(pair[0])[-1] != "kind"))
    _check_top(settings)
    if any(key == "source.kind" for key, _ in settings):
        source: dict[str, Any] = {"path": target}
    else:
        source_options = {
            split(key)[1]: value for key, value in settings if key.startswith("source.") and len(split(key)) == 2
        }
        source = source_of(target, source_options).to_dict()
    tree: dict[str, Any] = {"source": source, "sample_bytes": TRAINED_ON}
    kind = next((value for key, value in settings if key == "source.kind"), source.get("kind"))
    tree["tokenizer"] = usual_tokenizer(kind)
    for key, value in settings:
        assign(tree, key, value)
    return decode(DataSpec, tree)


def _check_top(settings: Sequence[tuple[str, Any]]) -> None:
    """Rejects unknown top-level keys before any data is read, and names the section that a misplaced key belongs to."""
    discover()
    top = {split(key)[0]: value for key, value in settings if len(split(key)) == 1 or not _has_section(key)}
    for section, family in (("source", SourceSpec), ("tokenizer", TokenizerSpec)):
        inside = {field.name for kind in family.kinds.values() for field in fields(kind)}
        for key in inside & top.keys() - {field.name for field in fields(DataSpec)}:
            raise SpecError(f"{key}: is a key of {section}. Write {section}.{key}={inline(top[key])}")
    decode(DataSpec, {"source": {"kind": "python_topics"}, "tokenizer": {"kind": "byte"}, **top})


def _has_section(key: str) -> bool:
    return split(key)[:1] in (["source"], ["tokenizer"])


def to_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """The output of `data --json`."""
    task = diagnosis.spec.source
    return {
        "source": diagnosis.spec.source.to_dict(),
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
        "task": {"chance": task.chance, "lag": task.lag} if isinstance(task, SyntheticTask) else None,
        "warnings": [
            {"check": finding.check, "text": finding.text, "where": list(finding.where)}
            for finding in diagnosis.findings
        ],
        "samples": diagnosis.samples,
    }


def _quantiles(sizes: Sequence[int]) -> dict[str, float]:
    quantiles = {name: int(np.quantile(sizes, at, method="higher")) for name, at in QUANTILES.items()}
    return {**quantiles, "mean": round(float(np.mean(sizes)), 2)}


def summary(diagnosis: Diagnosis) -> Table:
    """A table of source, tokenizer, labels and splits."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(diagnosis):
        table.add_row(name, value if isinstance(value, Text) else Text(visible(value)))
    return table


def _rows(diagnosis: Diagnosis) -> Iterator[tuple[str, str | Text]]:
    spec, contents, all_read = diagnosis.spec, diagnosis.contents, diagnosis.sampled == diagnosis.records
    options = [f"{key}={inline(value)}" for key, value in _told(spec.source).items()]
    yield "source", Text.assemble((spec.source.kind, "bold cyan"), "  ", visible("  ".join(options)))
    what = "pairs" if contents.pair else "questions" if contents.choices else "records"
    yield what, f"{diagnosis.records:,}, {human(diagnosis.characters)} characters"
    tokens = f"{diagnosis.tokens:,}" if all_read else f"about {human(diagnosis.tokens)}"
    sampled = "" if all_read else f"; from a sample of {diagnosis.sampled:,}"
    yield "tokens", f"{tokens} ({spec.tokenizer.kind}, vocabulary {diagnosis.vocabulary:,}{sampled})"
    if isinstance(spec.source, SyntheticTask):
        chance, lag = spec.source.chance, spec.source.lag
        yield "task", f"guessing is right {chance:.1%} of the time; dependencies reach up to {lag} tokens back"
    if contents.classes:
        shares = {name: 100 * count / diagnosis.records for name, count in diagnosis.labels.items()}
        yield "labels", _some([f"{name} ({percent:.1f}%)" for name, percent in shares.items()])
    elif contents.numbers:
        yield "labels", "numbers"
    if contents.tags:
        yield "tags", _some(contents.tags)
    counts = {**diagnosis.splits, **{name: 0 for name in diagnosis.cut_off if name not in diagnosis.splits}}
    yield "splits", "  ".join(f"{name} {count:,}" for name, count in counts.items()) + f"  ({_how(diagnosis)})"
    train = diagnosis.splits.get("train", 0)
    copies = f"{diagnosis.overlap:,} training records ({share(diagnosis.overlap, train)}) are also held out: left out"
    yield "overlap", copies if diagnosis.overlap else "none: no held-out text occurs in training"


def _how(diagnosis: Diagnosis) -> str:
    """How the splits were made: by the source, by cutting off shares, or not at all."""
    cut = [f"{name}: {100 * part:.3g}% of the {diagnosis.unit}" for name, part in diagnosis.cut_off.items()]
    return ", ".join([*(["given"] if diagnosis.split_by_source else []), *cut]) or "nothing is held out"


def _told(source: SourceSpec) -> dict[str, Any]:
    """Options to show: non-default options; for a built-in source, all options."""
    plain = {key: value for key, value in source.to_dict().items() if key != "kind"}
    if source.kind in built_in():
        return plain
    usual = {field.name: field.default for field in fields(source)}
    return {key: value for key, value in plain.items() if value not in (usual[key], [])}


def _some(names: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(names[:most]) + (", ..." if len(names) > most else "")
    return f"{len(names):,}: {shown}"


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
    for index, low in enumerate(edges):
        high = edges[index + 1] - 1 if index + 1 < len(edges) else max(map(max, sides.values()))
        if gap := _gap(counts.values(), index):
            if gap == 1:
                table.add_row("...")
            continue
        cells: list[RenderableType] = [f"{low:,}" if low >= high else f"{low:,} - {high:,}"]
        for side in sides:
            count = counts[side][index]
            cells += [Bar(max(counts[side]), 0, count, width=width, color="cyan"), f"{count:,}" if count else ""]
        table.add_row(*cells)
    title = Text.assemble(("length ", "bold"), ("of a record in tokens", "dim"))
    return Group(title, Padding(table, (0, 0, 0, 2), expand=False), *map(_usual, sides.items()))


def _gap(counts: Iterable[list[int]], index: int) -> int:
    """The index, from 1, of an empty bin in its run of empty bins; 0 if the run is too short to be omitted."""
    full = [any(bins) for bins in zip(*counts, strict=True)]
    if full[index]:
        return 0
    first = next((at + 1 for at in range(index - 1, -1, -1) if full[at]), 0)
    after = next((at for at in range(index, len(full)) if full[at]), len(full))
    return index - first + 1 if after - first > 2 else 0


def _usual(side: tuple[str, Sequence[int]]) -> Text:
    name, sizes = side
    at = _quantiles(sizes)
    quantiles = f"half have at most {at['p50']:,}, 95% at most {at['p95']:,}, the longest {at['max']:,}"
    return Text(f"  {name}: {quantiles}", style="dim")


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
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for number, sample in enumerate(diagnosis.samples):
        if number:
            table.add_row("")
        for name, value in sample.items():
            table.add_row("" if name == "where" else name, Text(_shown(value), style="dim" if name == "where" else ""))
    title = Text.assemble(("samples ", "bold"), ("encoded and decoded", "dim"))
    return Group(title, Padding(table, (0, 0, 0, 2), expand=False))


def _shown(text: str) -> str:
    """The beginning of a text with its line breaks and visible control characters."""
    cut = text if len(text) <= LONGEST_SAMPLE else text[: LONGEST_SAMPLE - 4] + " ..."
    lines = cut.split("\n")
    return "\n".join(map(visible, lines if len(lines) <= LINES else [*lines[:LINES], "..."]))


def complaints(diagnosis: Diagnosis) -> RenderableType:
    """The warnings, each with the first locations where it applies."""
    if not diagnosis.findings:
        return Text("No warnings.", style="green")
    lines: list[RenderableType] = [Text(f"{len(diagnosis.findings)} warnings", style="bold yellow")]
    if len(diagnosis.findings) == 1:
        lines = [Text("1 warning", style="bold yellow")]
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="yellow", no_wrap=True)
    table.add_column(overflow="fold")
    for finding in diagnosis.findings:
        table.add_row(finding.check, Text(visible(finding.text)))
        for where in finding.where:
            table.add_row("", Text(visible(where), style="dim"))
    return Group(*lines, Padding(table, (0, 0, 0, 2), expand=False))
