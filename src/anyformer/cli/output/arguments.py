"""Arguments that several verbs share which ask a run. Imports no torch."""

from pathlib import Path
from typing import Annotated, Literal

import typer

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, such as runs/small.")]
File = Annotated[
    Path | None,
    typer.Option(
        "--file",
        "-f",
        metavar="FILE",
        help="Where texts come from: lines, .jsonl, .csv, a folder; - is standard input.",
    ),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda", "mps"], typer.Option(help="Where to compute; auto: a GPU if there is.")
]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TEXT] [KEY=VALUE]", help="What it is asked; standard input if not given."),
]
