"""`anyformer train`: trains a recipe, a preset or a path to data into a run folder."""

import os
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from anyformer.cli.output.screen import Overrides, Screen, cache_folder, verb
from anyformer.errors import Interrupted

Trained = Annotated[
    str,
    Argument(metavar="TARGET", help="A recipe (.toml), a preset, a path to data, a built-in source, or a run folder."),
]


@verb(
    "anyformer train small",
    "anyformer train notes.txt train.steps=500",
    "anyformer train notes.txt model.preset=lstm-lm",
    "anyformer train reviews.csv data.source.text=review data.source.label=stars",
    "anyformer train recipe.toml optimizer.lr=3e-4 --out runs/slower",
    "anyformer train runs/slower --resume",
    "anyformer train runs/slower --resume train.steps=2000",
    panel="Train",
)
def train(
    target: Trained,
    overrides: Overrides = None,
    out: Annotated[Path | None, Option(metavar="FOLDER", help="The run folder; default: runs/NAME.")] = None,
    resume: Annotated[bool, Option("--resume", help="Resume an interrupted run, or extend it: train.steps=N.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Show what would be trained, and train nothing.")] = False,
    *,
    screen: Screen,
) -> None:
    """Train a model on data, or by a preset or a recipe.

    model.preset=NAME selects the architecture (anyformer presets lists them), other keys change it. Ctrl-C saves and
    stops; --resume continues exactly from there, train.steps=N extends a finished run.
    """
    if not resume and "WORLD_SIZE" not in os.environ:  # of several ranks, only one prints an error
        from anyformer.training.recipes.quick import recipe_mistakes, refuse_mistakes

        refuse_mistakes(target, overrides or (), recipe_mistakes)
    from anyformer.cli.output.training_progress import (
        TrainingProgress,
        errors_on_one_rank,
        rank,
        rehearse,
    )
    from anyformer.run import train
    from anyformer.training.runs.session import OUTPUT_CLOSED

    if dry_run:
        rehearse(screen, target, overrides or (), out)
        return
    watcher = TrainingProgress(screen)
    try:
        with watcher, errors_on_one_rank():
            run = train(target, *(overrides or ()), out=out, resume=resume, cache=cache_folder(), watcher=watcher)
    except BrokenPipeError:  # between steps the run is saved first
        text = "the output was closed before the first step. Repeat the command, with --resume if its folder exists."
        raise Interrupted(text, OUTPUT_CLOSED) from None
    if rank() == 0:
        watcher.finish(run)
