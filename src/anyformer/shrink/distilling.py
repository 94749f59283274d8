"""`distil`: a smaller model learns from the probabilities of a run's model beside the labels (arXiv 1503.02531)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from anyformer.core import ModelSpec, decode
from anyformer.errors import SpecError
from anyformer.objectives.distillation import Distillation
from anyformer.run import Run, opened, train
from anyformer.shrink.run_writing import note_origin, source_recipe, with_steps
from anyformer.training.recipes.recipe import Recipe, load
from anyformer.training.runs.session import Watcher

SAME = "same"
"""In place of a preset: the model of the teacher, which overrides make smaller."""


@dataclass(frozen=True, kw_only=True)
class StudentSettings:
    """The student and its training."""

    model: str
    """A preset, or "same": the model of the teacher."""
    steps: int = 0
    """Updates; as many as the teacher's if 0."""
    overrides: Sequence[str] = ()
    """Dotted keys, such as "model.stack.depth=2" or "objective.temperature=4"."""


def distil(
    run: Run | str | Path,
    settings: StudentSettings,
    out: str | Path,
    *,
    cache: Path | None = None,
    watcher: Watcher | None = None,
) -> Run:
    """Trains a student with the run as its teacher, on the data of the run."""
    run, out = opened(run), Path(out)
    recipe = student_recipe(run, settings)
    assert recipe.objective is not None
    taught = Distillation(objective=recipe.objective, teacher=str(run.folder))
    student = train(replace(recipe, objective=taught), *settings.overrides, out=out, cache=cache, watcher=watcher)
    note_origin(out, run, {"how": "distil", "student": settings.model, "overrides": list(settings.overrides)})
    return student


def alone(
    run: Run, settings: StudentSettings, out: Path, *, cache: Path | None = None, watcher: Watcher | None = None
) -> Run:
    """The same student without a teacher: the control."""
    overrides = [text for text in settings.overrides if not text.startswith("objective.")]
    return train(student_recipe(run, settings), *overrides, out=out, cache=cache, watcher=watcher)


def student_recipe(run: Run, settings: StudentSettings) -> Recipe:
    """The recipe of a run with the model of the student."""
    recipe = source_recipe(run)
    if recipe.data is None or recipe.objective is None:
        raise SpecError(f"--distil {settings.model}: {run.folder} was imported, so it has no data to learn from. Use: "
                        f"anyformer train DATA objective.kind=distillation objective.teacher={run.folder}")  # fmt: skip
    if isinstance(recipe.objective, Distillation):
        recipe = replace(recipe, objective=recipe.objective.objective)
    model = recipe.model if settings.model == SAME else _with_vocabulary(load(settings.model), recipe.model)
    recipe = replace(recipe, model=model)
    return with_steps(recipe, settings.steps) if settings.steps else recipe


def _with_vocabulary(model: ModelSpec, teacher: ModelSpec) -> ModelSpec:
    """The model with the vocabulary of its teacher, stack by stack."""
    if tuple(model.stacks) != tuple(teacher.stacks):
        ours, theirs = " and ".join(model.stacks), " and ".join(teacher.stacks)
        raise SpecError(f"--distil: the student has {ours}, the teacher {theirs}. Choose a preset of the same shape.")
    data = model.to_dict()
    for path, stack in zip(model.stack_paths, teacher.stacks.values(), strict=True):
        (data[path] if path else data)["vocab"] = stack.vocabulary
    return decode(ModelSpec, data)
