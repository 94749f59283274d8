"""The arguments of `train` and `compare`, Python values, as a layer of a recipe."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypedDict

from torch import nn

from anyformer.core import ModelSpec, Spec
from anyformer.core.fields import did_you_mean, shown, usual_name
from anyformer.core.plain_data import Tree
from anyformer.core.spec import hints_of
from anyformer.data.preparation.pipeline import DataSpec
from anyformer.data.record import SourceSpec
from anyformer.data.sources.named_source import source_of
from anyformer.errors import Problem, SpecError
from anyformer.objectives.objective import Objective
from anyformer.optim.optimizer import OptimizerSpec, ScheduleSpec
from anyformer.optim.tunings.tuning_spec import TuningSpec
from anyformer.training.recipes.recipe import CheckpointSpec, EvaluateSpec, LogSpec, Recipe, SampleSpec, TrainSpec
from anyformer.training.recipes.toml_layers import TomlLayers

PYTHON = "Python"
Target = str | Path | SourceSpec | ModelSpec | Recipe
"""A recipe file, a preset's name, a path to data, a source of data, a model, or a recipe."""


class Sections(TypedDict, total=False):
    """The sections of a recipe that `train` and `compare` take as keyword arguments; the data have one of their own. A
    mapping changes single keys of a section."""

    name: str
    seed: int
    init_seed: int
    model: ModelSpec | str | Mapping[str, Any]
    objective: Objective | Mapping[str, Any]
    optimizer: OptimizerSpec | Mapping[str, Any]
    schedule: ScheduleSpec | Mapping[str, Any]
    tune: TuningSpec | str | Mapping[str, Any]
    train: TrainSpec | Mapping[str, Any]
    evaluate: EvaluateSpec | Mapping[str, Any]
    checkpoint: CheckpointSpec | Mapping[str, Any]
    log: LogSpec | Mapping[str, Any]
    sample: SampleSpec | Mapping[str, Any]


DataTarget = str | Path | SourceSpec | DataSpec
"""What `data=` accepts: a path, the name of a built-in source, a source, or a whole data section."""


IN_MEMORY = ' Records in memory become a file by write_records("NAME.jsonl", records).'


def check_target(target: object, name: str = "target") -> None:
    """Raises SpecError for a value that can name neither data nor a model."""
    if isinstance(target, str | Path | Spec):
        return
    if isinstance(target, nn.Module):
        text = "expected a model as a value, such as Decoder(...), got a built module."
    else:
        text = f"expected a path, a preset's name, a source, a model or a recipe, got {shown(target)}."
        if isinstance(target, type) and issubclass(target, Spec):
            text += f" Write {target.__name__}(...)."
        elif isinstance(target, Iterable):
            text += IN_MEMORY
    raise SpecError(problems=[Problem(name, text)])


def check_data(data: object, *more: type[Spec]) -> None:
    """Raises SpecError for a value that is no path to data, no source and none of `more`."""
    if not isinstance(data, (str, Path, SourceSpec, *more)):
        also = f", or a {more[0].__name__}" if more else ""
        text = f"expected a path or a source such as Text(path=...){also}, got {shown(data)}.{IN_MEMORY}"
        raise SpecError(problems=[Problem("data", text)])


def check_paths(**paths: object) -> None:
    """Raises SpecError for a value that is neither a path nor None."""
    for name, path in paths.items():
        if not isinstance(path, str | Path | None):
            raise SpecError(problems=[Problem(name, f"expected a path, got {shown(path)}.")])


def with_preset(overrides: tuple[str, ...], sections: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """`train("notes.txt", model="small")`: a model's name is short for the override model.preset=NAME."""
    names = [value for key, value in sections.items() if key == "model" and isinstance(value, str)]
    words = [f"model.preset={json.dumps(name)}" for name in names]
    return (*words, *overrides), {key: value for key, value in sections.items() if not (words and key == "model")}


def layers_of(
    data: DataTarget | None, steps: int | None, sections: Mapping[str, Any], init_from: str | None = None
) -> TomlLayers:
    """Python values as a layer of a recipe: `train("small", data="notes.txt", steps=500, optimizer=Muon())`."""
    tree: Tree = {name: value.to_dict() if isinstance(value, Spec) else value for name, value in sections.items()}
    for name in tree:
        if name not in Sections.__annotations__:
            raise SpecError(problems=[_no_such_section(name)])
    if data is not None:
        check_data(data, DataSpec)
    if isinstance(data, DataSpec):
        tree["data"] = data.to_dict()
    elif isinstance(data, SourceSpec):
        tree["data"] = {"source": data.to_dict()}
    elif isinstance(data, str | Path):
        tree["data"] = {"source": source_of(str(data)).to_dict()}
    if steps is not None:
        train = tree.get("train", {})
        if train.get("steps", steps) != steps:
            raise SpecError(f"steps={steps} and train.steps={train['steps']} contradict each other. Keep one.")
        tree["train"] = {**train, "steps": steps}
    if init_from is not None:
        tree["init_from"] = init_from
    return TomlLayers.of(tree, PYTHON)


def _no_such_section(name: str) -> Problem:
    """The problem of a keyword argument that is no section, with the section that has a key of this name."""
    sections = {
        key: hint for key, hint in hints_of(Recipe).items() if isinstance(hint, type) and issubclass(hint, Spec)
    }
    key = usual_name(name)
    homes = [section for section, cls in sections.items() if key in (field.name for field in fields(cls))]
    if homes:
        return Problem(name, f'is a key of {homes[0]}. Pass it as a string: "{homes[0]}.{key}=...".')
    return Problem(name, f"a recipe has no such section.{did_you_mean(name, Sections.__annotations__)}")
