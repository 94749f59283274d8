"""`anyformer new`: a folder with a recipe that explains itself and trains as it is."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from anyformer.cli.output.screen import Screen, example, verb

Task = Literal["language-model", "masked-words", "translation", "summaries", "classification"]


def register(app: typer.Typer) -> None:
    app.command("new", epilog=example("anyformer new diary", "anyformer new spam --task classification"))(make)


@verb
def make(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="The folder to make; the run is called like it.")],
    task: Annotated[Task, typer.Option(help="What the model is to learn.")] = "language-model",
    *,
    screen: Screen,
) -> None:
    """A folder with a commented recipe.toml, ordered by relevance. It trains as it is; edit it for your data."""
    from anyformer.cli.output.recipe_text import create

    recipe = create(name, task)
    if screen.json:
        screen.data({"folder": str(name), "recipe": str(recipe), "task": task})
        return
    screen.lines(str(recipe) if screen.quiet else f"made {recipe}, for the task {task}.")
    if not screen.quiet:
        screen.lines(f"next: anyformer train {recipe}     trains it as it is, on data that need no download")
        screen.lines(f"      edit [data.source] in {recipe} for your own data; what a file holds: anyformer data FILE")
