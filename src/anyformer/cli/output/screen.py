"""What every verb says it through: `--json`, `--quiet`, tables, and numbers that can be read. Imports no torch."""

import functools
import inspect
import json
import sys
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from anyformer.statistics.readable_numbers import human as human
from anyformer.statistics.readable_numbers import human_bytes as human_bytes
from anyformer.statistics.readable_numbers import human_flops as human_flops

Target = Annotated[str, typer.Argument(metavar="TARGET", help="A preset's name, or a path to a recipe (.toml).")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Set single values, for example model.dim=512.")
]
_JSON = Annotated[bool, typer.Option("--json", help="Print JSON, for a program.")]
_QUIET = Annotated[bool, typer.Option("--quiet", "-q", help="Print only what matters most.")]


@dataclass(frozen=True)
class Screen:
    """Where a verb's answer goes, and how much of it."""

    json: bool = False
    quiet: bool = False

    def data(self, value: Any) -> None:
        """The answer for a program."""
        print(json.dumps(value, indent=2))

    def show(self, *renderables: RenderableType) -> None:
        """The answer for a person."""
        console = Console(highlight=False, markup=False)
        for renderable in renderables:
            console.print(renderable)

    def lines(self, text: Text | str) -> None:
        """Text whose lines must stay as they are."""
        Console(highlight=False, markup=False).print(text, soft_wrap=True)


def verb(run: Callable[..., None]) -> Callable[..., None]:
    """Gives a verb `--json` and `--quiet`, and hands it the screen that they ask for."""
    signature = inspect.signature(run, eval_str=True)
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "screen"]
    flags = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=hint)
        for name, hint in (("json", _JSON), ("quiet", _QUIET))
    ]

    @functools.wraps(run)
    def call(*, json: bool, quiet: bool, **arguments: Any) -> None:
        run(**arguments, screen=Screen(json, quiet))

    call.__signature__ = signature.replace(parameters=[*parameters, *flags])  # type: ignore[attr-defined]
    return call


def example(*lines: str) -> str:
    """The foot of a verb's help: commands to copy."""
    return "\n\n".join(["[dim]Examples[/dim]", *(line.replace("[", r"\[") for line in lines)])


def complain(text: str, hint: str = "") -> None:
    """Errors, a line each, on stderr. They may quote data, which must not drive a terminal."""
    console = Console(file=sys.stderr, highlight=False, markup=False)
    for line in text.rstrip("\n").split("\n"):
        console.print(Text.assemble(("error: ", "bold red"), visible(line)), soft_wrap=True)
    if hint:
        console.print(hint, soft_wrap=True)


def visible(text: str) -> str:
    """Control characters, and those that turn the direction of writing, spelt out: data must not drive a terminal."""
    return "".join(_spelt(letter) if unicodedata.category(letter)[0] == "C" else letter for letter in text)


def _spelt(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def share(part: float, total: float) -> str:
    """0.0375 -> 3.8 %; nothing where there is nothing."""
    if not part or not total:
        return ""
    percent = 100 * part / total
    return f"{percent:.1f} %" if percent >= 0.05 else "<0.1 %"
