"""Output of every verb: `--json`, `--quiet`, tables, errors and readable numbers. Imports no torch."""

import functools
import inspect
import json
import os
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from anyformer.core.plain_data import with_nulls
from anyformer.errors import ResourceError, SpecError, of_os_error

Target = Annotated[str, Argument(metavar="TARGET", help="The name of a preset, or the path of a recipe (.toml).")]
Overrides = Annotated[
    list[str] | None,
    Argument(metavar="KEY=VALUE", help="Override single values of the recipe, for example model.dim=512."),
]
Panel = Literal["Train", "Use a trained model", "Compare and predict", "Look inside", "Exchange and shrink", "Look up"]
"""What a verb is for. `anyformer --help` lists the verbs under these headings, in this order."""
_JSON = Annotated[bool, Option("--json", help="Print the result as JSON.")]
_QUIET = Annotated[bool, Option("--quiet", "-q", help="Print only the essential result.")]


NARROWEST = 14
"""Characters of a column whose cells are wrapped, at least."""


class PipeConsole(Console):
    """A console that lets its caller handle a closed pipe, where rich ends the process."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it again at exit
        raise BrokenPipeError


@dataclass(frozen=True)
class Screen:
    """Prints the result of a verb as JSON or as text, in full or briefly."""

    json: bool = False
    quiet: bool = False
    literal_words: int = 0
    """Number of arguments after `--`, which are never read as settings."""

    def data(self, value: Any) -> None:
        """Prints a value as indented JSON; numbers that are not finite become null."""
        print(json.dumps(with_nulls(value), indent=2, allow_nan=False))

    def record(self, value: Any) -> None:
        """Prints a value as one line of JSON; numbers that are not finite become null."""
        print(json.dumps(with_nulls(value), allow_nan=False), flush=True)

    def show(self, *renderables: RenderableType) -> None:
        """Prints tables and text, wrapped to the width of the terminal."""
        console = Console(highlight=False, markup=False)
        for renderable in renderables:
            console.print(renderable)

    def lines(self, text: Text | str) -> None:
        """Prints text without wrapping its lines."""
        Console(highlight=False, markup=False).print(text, soft_wrap=True)

    def written(self, path: Path) -> None:
        """Prints the path of a file that was written."""
        self.lines(str(path) if self.quiet else f"written: {path}")


def note(screen: Screen, text: str) -> None:
    """Prints a note on stderr, unless --quiet."""
    if not screen.quiet:
        Console(stderr=True, highlight=False, markup=False, style="dim").print(visible(text), soft_wrap=True)


def fitting(
    rows: Sequence[Mapping[str, str]], less_important: Sequence[str], wrapped: Collection[str] = (), padding: int = 2
) -> list[str]:
    """The columns of a table that fit into the terminal without a cut cell.

    `less_important`: columns that may be left out, the least important first. `wrapped`: columns whose cells may take
    several lines.
    """
    widths = {name: max(map(cell_len, (name, *(row[name] for row in rows)))) for name in rows[0]}
    widths |= {name: min(widths[name], NARROWEST) for name in widths if name in wrapped}
    names = list(widths)
    for name in (name for name in less_important if name in widths):
        if sum(widths[name] + padding for name in names) - padding <= Console().width:
            break
        names.remove(name)
    return names


def note_left_out(screen: Screen, columns: Collection[str]) -> None:
    """Notes which columns of a table are not shown because the terminal is narrow."""
    if columns:
        note(
            screen, f"not shown in {Console().width} columns: {', '.join(columns)}. A wider terminal or --json has all."
        )


def verb(
    *examples: str, group: typer.Typer | None = None, panel: Panel | None = None
) -> Callable[[Callable[..., None]], typer.Typer]:
    """Decorator that makes a function a verb with example commands in its help, or a command of a `group`.

    The first paragraph of its docstring stands in `anyformer --help`, under the heading `panel`. The verb gets the
    options `--json` and `--quiet`, which the function receives as a `Screen`.
    """
    app = group or typer.Typer(add_completion=False, rich_markup_mode="rich")

    def decorate(run: Callable[..., None]) -> typer.Typer:
        signature = inspect.signature(run, eval_str=True)
        parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "screen"]
        extra = {"json": (_JSON, False), "quiet": (_QUIET, False), "context": (typer.Context, inspect.Parameter.empty)}
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
            for name, (hint, default) in extra.items()
        ]

        @functools.wraps(run)
        def call(*, json: bool, quiet: bool, context: typer.Context, **arguments: Any) -> None:
            run(**arguments, screen=Screen(json, quiet, literal_words=context.obj or 0))

        call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        paragraphs = inspect.cleandoc(run.__doc__ or "").split("\n\n")
        text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)  # typer keeps single line ends
        app.command(run.__name__.rstrip("_"), help=text, epilog=epilog(*examples), rich_help_panel=panel)(call)
        return app

    return decorate


def epilog(*examples: str) -> str:
    """The end of a help text: example commands."""
    return "\n\n".join(["[dim]Examples[/dim]", *(line.replace("[", r"\[") for line in examples)])


def cache_folder() -> Path:
    """The folder of the cache of prepared data."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "anyformer" / "data"


def complain(text: str, hint: str = "") -> None:
    """Prints errors on stderr, one per line, with control characters escaped because errors may quote data."""
    console = Console(file=sys.stderr, highlight=False, markup=False)
    for line in text.rstrip("\n").split("\n"):
        console.print(Text.assemble(("error: ", "bold red"), visible(line)), soft_wrap=True)
    if hint:
        console.print(hint, soft_wrap=True)


def visible(text: str) -> str:
    """Escapes control characters and bidirectional marks, so that data cannot control the terminal."""
    return "".join(
        letter.encode("unicode_escape").decode() if unicodedata.category(letter)[0] == "C" else letter
        for letter in text
    )


def pairs(rows: Iterable[tuple[str, str | Text]], style: str = "cyan", indent: int = 0) -> Padding:
    """A table of names and values."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style=style, no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value if isinstance(value, Text) else Text(value))
    return Padding(table, (0, 0, 0, indent), expand=False)


def plain_table(*columns: str, gap: int = 2) -> Table:
    """A table without lines, its headings dim, with `gap` spaces between its columns."""
    return Table(*columns, box=None, padding=(0, gap, 0, 0), header_style="dim", pad_edge=False)


def share(part: float, total: float) -> str:
    """A share as a percentage: 0.0375 -> 3.8 %; empty if either number is zero."""
    if not part or not total:
        return ""
    percent = 100 * part / total
    return f"{percent:.1f} %" if percent >= 0.05 else "<0.1 %"


def store_as(file: Path, content: str | bytes, option: str) -> None:
    """Writes a page or a picture to the file that the user named with a command-line option."""
    from anyformer.disk import store

    try:
        store(file, content)
    except OSError as error:
        if isinstance(known := of_os_error(error), ResourceError):
            raise known from None
        raise SpecError(f"{file}: {error.strerror}. Name another place: {option} FILE.") from None


def drawn(file: Path, content: str | bytes, option: str, screen: Screen) -> None:
    """Writes a picture and prints its path; `option` is the command-line option that named the file."""
    store_as(file, content, option)
    if screen.json:
        screen.data({"file": str(file)})
    else:
        screen.written(file)


RunFolder = Annotated[Path, Argument(metavar="RUN", help="A run folder, such as runs/small.")]
File = Annotated[
    Path | None,
    Option(
        "--file",
        "-f",
        metavar="FILE",
        help="Read the texts from a file (one text per line, .jsonl, .csv), a folder, or - for standard input.",
    ),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda", "mps"], Option(help="The device to run on; auto uses a GPU if available.")
]
Checkpoint = Annotated[
    str,
    Option(metavar="best|last|N", help="The checkpoint to use: of the lowest validation loss, the last, or of step N."),
]
Words = Annotated[
    list[str] | None,
    Argument(
        metavar="[TEXT] [KEY=VALUE]", help="The input texts, and settings; default: standard input, one text per line."
    ),
]
