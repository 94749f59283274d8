"""`anyformer new`: creates a folder with a commented recipe that trains without changes."""

import shlex
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from anyformer.cli.output.screen import Screen, verb

Task = Literal["language-model", "masked-words", "translation", "summaries", "classification"]


@verb("anyformer new diary", "anyformer new spam --task classification", panel="Train")
def new(
    name: Annotated[Path, Argument(metavar="NAME", help="The folder to create; also the name of the run.")],
    task: Annotated[Task, Option(help="The task that the model learns.")] = "language-model",
    *,
    screen: Screen,
) -> None:
    """Create a folder with a commented recipe.toml.

    Its keys are ordered by relevance, and it trains without changes.
    """
    from anyformer.cli.output.recipe_text import create
    from anyformer.core.discovery import program

    recipe = create(name, task)
    if screen.json:
        screen.data({"folder": str(name), "recipe": str(recipe), "task": task})
        return
    screen.lines(str(recipe) if screen.quiet else f"made {recipe}, for the task {task}.")
    if not screen.quiet:
        named = shlex.quote(str(recipe))
        screen.lines(f"next: {program()} train {named}     trains on built-in data, without a download")
        screen.lines(f"      edit [data.source] in {named} for your own data; anyformer data FILE describes a file")
