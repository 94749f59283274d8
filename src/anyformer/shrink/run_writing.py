"""A changed model as a run folder like any other, with a file that states its origin."""

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from anyformer.core import Model, ModelSpec
from anyformer.data.sources.named_source import relocated
from anyformer.disk import CHECKPOINTS, ENVIRONMENT, SHRUNK, TOKENIZER, write
from anyformer.errors import DataError, SpecError
from anyformer.run import Run
from anyformer.training.loop.budget import Progress
from anyformer.training.recipes.recipe import BUDGETS, Loaded, Recipe
from anyformer.training.runs import checkpoint
from anyformer.training.runs.run_folder import RunFolder, locked, refuse_occupied


def write_run(source: Run, out: Path, spec: ModelSpec, model: Model, how: Mapping[str, Any]) -> Run:
    """Writes a model made from the model of a run: data, tokenizer and objective are those of that run."""
    refuse_occupied(out)
    files = {"model": model.state_dict(), **companions(source, spec)}
    with locked(out):
        try:
            _write(source, out, replace(source_recipe(source), model=spec), files, how)
        except BaseException:
            shutil.rmtree(out, ignore_errors=True)
            raise
    run = Run.open(out)
    with suppress(DataError):  # the data are elsewhere now: probabilities only stay uncalibrated
        run.calibrate()
    return run


def _write(source: Run, out: Path, recipe: Recipe, files: Mapping[str, Any], how: Mapping[str, Any]) -> None:
    """Writes the files; the recipe last, so a folder that has one is complete."""
    write(out / ENVIRONMENT, json.dumps(dict(source.environment), indent=1))
    if (source.folder / TOKENIZER).is_file():
        shutil.copyfile(source.folder / TOKENIZER, out / TOKENIZER)
    note_origin(out, source, how)
    state = {"progress": Progress().to_dict(), "complete": True}
    checkpoint.save(out / CHECKPOINTS, 0, files, state)
    RunFolder(out).event("shrunk", steps=0, source=str(source.folder))  # it took no steps of its own
    RunFolder(out).write_recipe(Loaded(out.name, recipe, {"model": f"shrunk from {source.folder}"}))


def note_origin(folder: Path, source: Run, how: Mapping[str, Any]) -> None:
    """Stores the run that a model was made from and the settings, for the report."""
    facts = {"from": str(source.folder), "checkpoint": source.describe(), **how}
    write(folder / SHRUNK, json.dumps(facts, indent=1))


def store_table(folder: Path, table: Mapping[str, Any]) -> None:
    """Adds the measurements of a run and of those it is compared with to its origin."""
    facts = dict(checkpoint.read_facts(folder / SHRUNK))
    write(folder / SHRUNK, json.dumps({**facts, "table": table}, indent=1))


def source_recipe(source: Run) -> Recipe:
    """The recipe of a run for another run: its paths are valid in this folder, and it starts from no other run."""
    recipe = replace(source.recipe, name=None, init_from=None)
    if recipe.data is None:
        return recipe
    return replace(recipe, data=relocated(recipe.data, source.environment.get("began_in")))


def with_steps(recipe: Recipe, steps: int) -> Recipe:
    """The recipe with this number of updates as its only budget."""
    budget: dict[str, Any] = {**dict.fromkeys(BUDGETS), "steps": steps}
    return replace(recipe, train=replace(recipe.train, **budget))


def companions(source: Run, spec: ModelSpec) -> dict[str, Any]:
    """The tensors of the models that the objective trains along; SpecError if the changed model needs other ones."""
    objective = source.recipe.objective
    if objective is None:
        return {}
    before, after = (objective.companions(model) for model in (source.recipe.model, spec))
    if before != after:
        raise SpecError(f"{source.folder}: {objective.kind} trains other models along whose shapes follow this one's, "
                        f"so it cannot be made smaller alone.")  # fmt: skip
    return dict(checkpoint.read(source.checkpoint(), only=tuple(before))) if before else {}
