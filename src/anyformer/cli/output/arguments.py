"""Arguments shared by the verbs that use a trained run. Imports no torch."""

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
        help="Read the texts from a file (one text per line, .jsonl, .csv), a folder, or - for standard input.",
    ),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda", "mps"], typer.Option(help="The device to run on; auto uses a GPU if available.")
]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TEXT] [KEY=VALUE]", help="The input texts, and settings; default: standard input, one text per line."
    ),
]
