"""`anyformer config`: shows a resolved recipe with the origin of each value, checks it, and compares two recipes."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from anyformer.cli.output.screen import Overrides, Screen, Target, drawn, epilog, verb
from anyformer.core.plain_data import inline, toml_document
from anyformer.core.readable_numbers import human, human_flops
from anyformer.errors import SpecError

config = typer.Typer(
    name="config",
    add_completion=False,
    rich_markup_mode="rich",
    no_args_is_help=True,
    epilog=epilog("anyformer config show small"),
)


@config.callback(rich_help_panel="Look up")
def _config() -> None:
    """Show, check and compare resolved recipes."""


@verb(
    "anyformer config show gpt2 model.dim=512",
    "anyformer config show transformer-base --svg transformer.svg",
    "anyformer config show lstm-lm --svg lstm.svg --unroll 3",
    group=config,
)
def show(
    target: Target,
    overrides: Overrides = None,
    svg: Annotated[
        Path | None, Option(metavar="FILE", help="Draw the model to this file instead of printing the recipe.")
    ] = None,
    unroll: Annotated[
        int | None, Option(metavar="N", min=2, max=8, help="With --svg: draw the model for N tokens side by side.")
    ] = None,
    *,
    screen: Screen,
) -> None:
    """Print the resolved recipe as TOML, with the origin of each value as a comment. --quiet omits the origins."""
    from anyformer.cli.output.recipes import model_of, resolved

    if svg is not None:
        if svg.suffix != ".svg":
            raise SpecError(f"--svg {svg}: the file name must end in .svg.")
        from anyformer.drawing.diagram import diagram, picture
        from anyformer.drawing.unrolled import unrolled

        name, model = model_of(target, overrides or ())
        drawn(svg, picture(name, unrolled(model, unroll) if unroll else diagram(model)), "--svg", screen)
        return
    if unroll is not None:
        raise SpecError("--unroll is for a drawing. Name its file with --svg FILE.")
    loaded = resolved(target, overrides or ())
    data = loaded.recipe.to_dict()
    if screen.json:
        screen.data({"recipe": data, "origins": dict(loaded.origins)})
        return
    text = Text(toml_document(data, lambda key: "" if screen.quiet else loaded.origins[key]))
    text.highlight_regex(r"(?m)  # .*$", "dim")
    text.highlight_regex(r"(?m)^\[.*\]$", "bold")
    screen.lines(text)


@verb("anyformer config check recipe.toml", group=config)
def check(target: Target, overrides: Overrides = None, *, screen: Screen) -> None:
    """Validate a recipe, build its model on the meta device and print its totals. All errors are listed."""
    totals = _totals(target, overrides or [])
    if screen.json:
        screen.data({"ok": True, **totals})
    elif not screen.quiet:
        forward = human_flops(totals["flops_forward"] / totals["length"])
        screen.lines(f"{totals['name']} is valid: {human(totals['params'])} parameters, {forward} forward per token.")


def _totals(target: str, overrides: list[str]) -> dict[str, Any]:
    """Name, cost and input size of a recipe: those of the catalogue for a preset, which is valid; otherwise counted."""
    from anyformer.cli.output.recipes import resolved
    from anyformer.core.discovery import catalogue, catalogue_suffices

    loaded = resolved(target, overrides)
    presets = catalogue()["presets"]
    if catalogue_suffices() and target in presets and not overrides:
        return {"name": loaded.name, **presets[target]["cost"], **presets[target]["work"]}
    from anyformer.cli.output.counting import counted
    from anyformer.core import ModelSpec, decode

    model = decode(ModelSpec, loaded.recipe.to_dict()["model"], "model")
    return {key: value for key, value in counted(loaded.name, model).to_dict().items() if key != "parts"}


@verb("anyformer config diff gpt2 gpt2-xl", group=config)
def diff(
    target: Target,
    other: Annotated[str, Argument(metavar="OTHER", help="Another preset or recipe.")],
    *,
    screen: Screen,
) -> None:
    """Print the keys in which two recipes differ, with both values."""
    from anyformer.cli.output.recipes import resolved

    mine, theirs = resolved(target), resolved(other)
    differences = mine.recipe.diff(theirs.recipe)
    if screen.json:
        screen.data({key: list(pair) for key, pair in differences.items()})
    elif not differences:
        screen.lines(f"{mine.name} and {theirs.name} are equal.")
    elif screen.quiet:
        screen.lines("\n".join(differences))
    else:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
        table.add_column("", overflow="fold", style="cyan")
        for name in (mine.name, theirs.name):
            table.add_column(name, overflow="fold")
        for key, values in differences.items():
            table.add_row(key, *("" if value is None else inline(value) for value in values))
        screen.show(table)


@verb("anyformer config schema > recipe.schema.json", group=config)
def schema(*, screen: Screen) -> None:
    """Print the JSON schema of a resolved recipe, with every installed kind."""
    from anyformer.core import schema
    from anyformer.core.discovery import catalogue_suffices

    if catalogue_suffices():
        from anyformer.core.stand_ins import stand_ins

        screen.data(schema.schema(stand_ins()["Recipe"]))
        return
    from anyformer.training import Recipe

    screen.data(schema.schema(Recipe))
