"""The data card: what a target and its overrides mean, and what the doctor found, for a screen or a program."""

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
TRAINED_ON = 1_000_000  # bytes: enough to count tokens, and done in a second


def resolve(target: str, overrides: Sequence[str]) -> DataSpec:
    """A path or a built-in source, with overrides on top; `data.` before a key is what a recipe says."""
    given = [(key.removeprefix("data."), value) for key, value in map(parse_override, overrides)]
    given.sort(key=lambda pair: (len(split(pair[0])), split(pair[0])[-1] != "kind"))
    _check_top(given)
    if any(key == "source.kind" for key, _ in given):
        source: dict[str, Any] = {"path": target}
    else:
        told = {split(key)[1]: value for key, value in given if key.startswith("source.") and len(split(key)) == 2}
        source = source_of(target, told).to_dict()
    tree: dict[str, Any] = {"source": source, "sample_bytes": TRAINED_ON}
    kind = next((value for key, value in given if key == "source.kind"), source.get("kind"))
    tree["tokenizer"] = usual_tokenizer(kind)
    for key, value in given:
        assign(tree, key, value)
    return decode(DataSpec, tree)


def _check_top(given: Sequence[tuple[str, Any]]) -> None:
    """A wrong key is told before anything is read, and where it belongs."""
    discover()
    top = {split(key)[0]: value for key, value in given if len(split(key)) == 1 or not _has_section(key)}
    for section, family in (("source", SourceSpec), ("tokenizer", TokenizerSpec)):
        inside = {field.name for kind in family.kinds.values() for field in fields(kind)}
        for key in inside & top.keys() - {field.name for field in fields(DataSpec)}:
            raise SpecError(f"{key}: is a key of {section}. Write {section}.{key}={inline(top[key])}")
    decode(DataSpec, {"source": {"kind": "python_topics"}, "tokenizer": {"kind": "byte"}, **top})


def _has_section(key: str) -> bool:
    return split(key)[:1] in (["source"], ["tokenizer"])


def to_dict(found: Diagnosis) -> dict[str, Any]:
    """What `data --json` prints."""
    task = found.spec.source
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
        "task": {"chance": task.chance, "lag": task.lag} if isinstance(task, SyntheticTask) else None,
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
    if isinstance(spec.source, SyntheticTask):
        yield (
            "task",
            f"guessing is right {spec.source.chance:.1%} of the time; clues stand up to {spec.source.lag} back",
        )
    if contents.classes:
        shares = {name: 100 * count / found.records for name, count in found.labels.items()}
        yield "labels", _some([f"{name} ({percent:.1f}%)" for name, percent in shares.items()])
    elif contents.numbers:
        yield "labels", "numbers"
    if contents.tags:
        yield "tags", _some(contents.tags)
    counts = {**found.splits, **{name: 0 for name in found.cut_off if name not in found.splits}}
    yield "splits", "  ".join(f"{name} {count:,}" for name, count in counts.items()) + f"  ({_how(found)})"
    train = found.splits.get("train", 0)
    copies = f"{found.overlap:,} training records ({share(found.overlap, train)}) are held out, too: left out"
    yield "overlap", copies if found.overlap else "none: no held-out text stands in training"


def _how(found: Diagnosis) -> str:
    """Who decided about the splits."""
    cut = [f"{name}: {100 * part:.3g}% of the {found.unit}" for name, part in found.cut_off.items()]
    return ", ".join([*(["given"] if found.split_by_source else []), *cut]) or "nothing is held out"


def _told(source: SourceSpec) -> dict[str, Any]:
    """Of a source that was guessed, what was guessed; of a built-in one, all that can be changed."""
    plain = {key: value for key, value in source.to_dict().items() if key != "kind"}
    if source.kind in built_in():
        return plain
    usual = {field.name: field.default for field in fields(source)}
    return {key: value for key, value in plain.items() if value not in (usual[key], [])}


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
    """The place of an empty bin among empty ones, from 1 on; 0 where they are too few to be left out."""
    full = [any(bins) for bins in zip(*counts, strict=True)]
    if full[index]:
        return 0
    first = next((at + 1 for at in range(index - 1, -1, -1) if full[at]), 0)
    after = next((at for at in range(index, len(full)) if full[at]), len(full))
    return index - first + 1 if after - first > 2 else 0


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
    for number, sample in enumerate(found.samples):
        if number:
            table.add_row("")
        for name, value in sample.items():
            table.add_row("" if name == "where" else name, Text(_shown(value), style="dim" if name == "where" else ""))
    title = Text.assemble(("samples ", "bold"), ("encoded and decoded", "dim"))
    return Group(title, Padding(table, (0, 0, 0, 2), expand=False))


def _shown(text: str) -> str:
    """The beginning of a text, its line ends kept."""
    cut = text if len(text) <= LONGEST_SAMPLE else text[: LONGEST_SAMPLE - 4] + " ..."
    lines = cut.split("\n")
    return "\n".join(map(visible, lines if len(lines) <= LINES else [*lines[:LINES], "..."]))


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
