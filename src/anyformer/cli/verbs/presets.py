"""`anyformer presets`: lists complete models to start from, with their sizes over the years."""

from pathlib import Path
from typing import Annotated

from rich.table import Table
from rich.text import Text
from typer import Option

from anyformer.cli.output.screen import Screen, fitting, note_left_out, plain_table, verb

WRAPPED = ("data", "training")
LESS_IMPORTANT = ("training", "data", "heads", "layers", "width")
"""Columns that are left out in a narrow terminal, the least important first."""


@verb("anyformer presets", "anyformer presets --out presets.html", "anyformer cost gpt2", panel="Look up")
def presets(
    out: Annotated[
        Path | None, Option(metavar="FILE", help="Write a page with charts by year (.html), or a table (.md).")
    ] = None,
    *,
    screen: Screen,
) -> None:
    """List all presets, such as GPT, BERT and Mamba, with their sizes.

    For each: layers, width, heads and counted parameters; for published models also data and hardware.
    """
    from anyformer.analysis.large_models import filled, large, row, sized
    from anyformer.errors import SpecError

    if out is not None and out.suffix not in (".html", ".md"):
        raise SpecError(f"--out {out}: the file name must end in .html or .md.")
    models = sized()
    if screen.json:
        screen.data([model.to_dict() for model in models])
    elif screen.quiet:
        screen.lines("\n".join(model.model for model in models))
    elif out is None:
        published, others = large(models), [model for model in models if not model.date]
        tables = [filled([row(model) for model in part]) for part in (published, others)]
        names = [fitting(rows, LESS_IMPORTANT, WRAPPED) for rows in tables]
        screen.show(_table(tables[0], names[0]), "", _table(tables[1], names[1]))
        note_left_out(screen, [name for name in tables[0][0] if name not in names[0]])
    if out is None:
        return
    from anyformer.reporting.preset_report import write_presets

    write_presets(models, out)
    if not (screen.json or screen.quiet):
        screen.written(out)


def _table(rows: list[dict[str, str]], names: list[str]) -> Table:
    table = plain_table()
    for name in names:
        table.add_column(name, no_wrap=name not in WRAPPED, justify="right" if name == "params" else "left")
    for row in rows:
        table.add_row(*(Text(row[name]) for name in names))
    return table
