"""Completes the recipe of a target: a recipe file, a preset's name, a path to data, a model or a recipe.

Missing values follow from the others: the model from the form of the data, the objective from both, the vocabulary
from the tokenizer, the number of classes from the labels.
"""

import copy
import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypedDict

from anyformer.core import ModelSpec, Position, Spec, decode, kind_of
from anyformer.core.discovery import discover
from anyformer.core.paths import Tree, merge, parse_override, split
from anyformer.data.preparation.contents import Contents
from anyformer.data.preparation.pipeline import DataSpec
from anyformer.data.preparation.prepared import Prepared
from anyformer.data.record import SourceSpec
from anyformer.data.sources.named_source import peek, source_of, usual_tokenizer
from anyformer.disk import TOKENIZER
from anyformer.errors import DataError, Problem, SpecError, at
from anyformer.models.presets import preset_names
from anyformer.objectives.objective import Objective
from anyformer.optim.optimizer import OptimizerSpec
from anyformer.optim.schedule import ScheduleSpec
from anyformer.training.recipes.compatibility import refuse_other_tokenizer, refuse_packed
from anyformer.training.recipes.recipe import (
    CheckpointSpec,
    EvaluateSpec,
    Loaded,
    LogSpec,
    Recipe,
    SampleSpec,
    TrainSpec,
    decode_recipe,
)
from anyformer.training.recipes.toml_layers import DEFAULT, TomlLayers, of_preset, overridden, read
from anyformer.training.runs.data_cache import prepared_for

FROM_DATA, PYTHON = "data", "Python"
MAX_NAME = 128
MIN_WORKERS, WORKERS_PER_CORE = 16, 4
STAND_IN = "placeholder until the data are read"
Target = str | Path | ModelSpec | Recipe
"""A recipe file, a preset's name, a path to data, a model, or a recipe."""
MODELS = {"text": "small", "pair": "small-encoder-decoder"}
"""Preset for a form of data; `small-encoder` for every other form."""
SHAPES = {"decoder": "small", "encoder": "small-encoder", "encoder_decoder": "small-encoder-decoder"}
EMBEDDED = {"decoder": "python_topics", "encoder": "python_topics", "encoder_decoder": "number_words"}


class Sections(TypedDict, total=False):
    """The sections of a recipe that `train` and `compare` take as keyword arguments; the data have one of their own."""

    name: str
    seed: int
    init_seed: int
    model: ModelSpec
    objective: Objective
    optimizer: OptimizerSpec
    schedule: ScheduleSpec
    train: TrainSpec
    evaluate: EvaluateSpec
    checkpoint: CheckpointSpec
    log: LogSpec
    sample: SampleSpec


DataTarget = str | Path | SourceSpec | DataSpec
"""What `data=` accepts: a path, the name of a built-in source, a source, or a whole data section."""


def draft(target: Target, overrides: Sequence[str] = (), values: TomlLayers | None = None) -> TomlLayers:
    """The recipe of a target as far as it is known before the data are read.

    `values`: sections given as Python values (see `layers_of`); they replace those of the target, and overrides are
    laid on top of both.
    """
    values, contents = values or TomlLayers.of({}, PYTHON), ContentsReader()
    if isinstance(target, Recipe):
        document = values.over(TomlLayers.of(target.to_dict(), PYTHON))
    elif isinstance(target, ModelSpec):
        document = values.over(TomlLayers.of({"model": target.to_dict()}, PYTHON))
    elif str(target).endswith(".toml") or str(target) in preset_names():
        document = values.over(read(str(target)))
        if "model" not in overridden(document, overrides).data:
            raise SpecError("model: is missing. Name one: model.preset=small, or write it down under [model].")
    else:
        document = _from_data(str(target), overrides, values, contents)
    document = overridden(document, overrides)
    _refuse_kind_alone(document.data.get("model"))
    return _with_objective(_with_data(document), contents)


def layers_of(
    data: DataTarget | None, steps: int | None, sections: Mapping[str, Any], init_from: str | None = None
) -> TomlLayers:
    """Python values as a layer of a recipe: `train("small", data="notes.txt", steps=500, optimizer=Muon())`."""
    tree: Tree = {name: value.to_dict() if isinstance(value, Spec) else value for name, value in sections.items()}
    unknown = [name for name in tree if name not in Sections.__annotations__]
    if unknown:
        known = ", ".join(Sections.__annotations__)
        raise SpecError(f"{unknown[0]}: a recipe has no such section. Sections: {known}.")
    if isinstance(data, DataSpec):
        tree["data"] = data.to_dict()
    elif data is not None:
        tree["data"] = {"source": (data if isinstance(data, SourceSpec) else source_of(str(data))).to_dict()}
    if steps is not None:
        tree["train"] = {**tree.get("train", {}), "steps": steps}
    if init_from is not None:
        tree["init_from"] = init_from
    return TomlLayers.of(tree, PYTHON)


def complete(recipe: Recipe, cache: Path | None = None) -> tuple[Recipe, Prepared]:
    """A recipe with everything that follows from its data filled in, and these data, prepared."""
    document = draft(recipe)
    check_model(decode_recipe(provisional(document), "recipe").recipe)
    prepared = prepared_for(data_of(document), cache)
    return settle(document, prepared, "recipe").recipe, prepared


class ContentsReader:
    """The contents of a source by its first records, read once."""

    def __init__(self) -> None:
        self._source: SourceSpec | None = None
        self._contents = Contents()

    def __call__(self, source: SourceSpec) -> Contents:
        if self._source != source:
            self._source, self._contents = source, peek(source)
        return self._contents


def outline(target: str | Path, overrides: Sequence[str] = ()) -> Loaded:
    """A recipe before its data are read: two classes are a placeholder for the real number."""
    document = read(target, overrides)
    if "data" in document.data:
        document = _with_data(document)
    if _counts_classes(document.data.get("objective")):
        document = TomlLayers.of({"objective": {"classes": 2}}, STAND_IN).on(document)
    return decode_recipe(document, Path(target).name.removesuffix(".toml"))


def settle(document: TomlLayers, prepared: Prepared, name: str) -> Loaded:
    """The complete recipe, with the vocabulary and the classes of the prepared data."""
    known = _facts(document, prepared.words.size, prepared.contents)
    completed = TomlLayers.of(known, FROM_DATA).on(document)
    loaded = decode_recipe(completed, name)
    recipe = loaded.recipe
    assert recipe.objective is not None and recipe.data is not None
    _check_vocabulary(recipe.model, prepared.words.size)
    model = recipe.objective.adapt(recipe.model)
    refuse_other_tokenizer(recipe.objective, prepared)
    refuse_packed(recipe.objective, model, prepared)
    return replace(loaded, recipe=replace(recipe, model=model))


def data_of(document: TomlLayers) -> DataSpec:
    """The data section of a recipe."""
    return decode(DataSpec, document.data["data"], "data")


def check_model(recipe: Recipe) -> None:
    """Builds the model without memory, so that one that cannot be built is refused before the data are read."""
    assert recipe.objective is not None and recipe.data is not None
    spec, context = recipe.objective.adapt(recipe.model), recipe.data.context
    with at("model"):
        model = spec.build(device="meta")
    for name, module in model.named_modules():
        if isinstance(module, Position) and module.longest is not None and module.longest < context:
            side = f"{name.split('.')[0]}." if spec.needs_source else ""
            text = f"{module.longest} positions are fewer than data.context={context}."
            raise SpecError(
                problems=[Problem(f"model.{side}max_len", f"{text} Set it to {context}, or the context to less.")]
            )
    most = max(MIN_WORKERS, WORKERS_PER_CORE * (os.cpu_count() or 1))
    if recipe.train.workers > most:
        text = f"must be at most {most}: each is a process, and this machine has {os.cpu_count()} cores"
        raise SpecError(problems=[Problem("train.workers", f"{text}; got {recipe.train.workers:,}.")])


def name_of(target: Target, document: TomlLayers) -> str:
    """The name of a run: set in the recipe, or else that of the file, the preset or the data."""
    name = document.data.get("name")
    if isinstance(name, str) and name:
        _check_name(name)
        return name
    if isinstance(target, Spec):
        source = document.data["data"]["source"]
        target = str(source.get("path", source["kind"]))
    stem = Path(str(target).split(",")[0]).name or str(target)
    return stem.split(".")[0] or "run"


def _check_name(name: str) -> None:
    """The name is a folder under runs/, so it must be one component of a path."""
    if name.strip(". ") == "" or set(name) & set("/\\") or not name.isprintable() or len(name.encode()) > MAX_NAME:
        shown = name if len(name) <= MAX_NAME else f"{name[:40]}..."
        raise SpecError(
            f"name: {shown!r} must be one folder name: no / or \\, no control characters, at most {MAX_NAME} bytes. "
            f"To train into another folder: --out FOLDER"
        )


def _from_data(target: str, overrides: Sequence[str], values: TomlLayers, contents: ContentsReader) -> TomlLayers:
    """The recipe of a path to data; without a model, the preset that suits the form of the data."""
    if "data" in values.data:
        raise SpecError(f"data: {target} is data already. Give a model, a preset or a recipe as the target instead.")
    keys = {tuple(split(key)): value for key, value in map(parse_override, overrides)}
    options = {key[2]: value for key, value in keys.items() if key[:2] == ("data", "source") and len(key) == 3}
    source = decode(SourceSpec, {"path": target, **options}) if "kind" in options else _named(target, options)
    document = values.over(TomlLayers.of({"data": {"source": source.to_dict()}}, f"target {target}"))
    if "model" in document.data or keys.keys() & {("model",), ("model", "preset"), ("model", "kind")}:
        return document
    return of_preset(MODELS.get(contents(source).form, "small-encoder")).on(document)


def _refuse_kind_alone(model: Any) -> None:
    """`model.kind=encoder` names a shape without layers; a preset has both."""
    kind = model.get("kind") if isinstance(model, Mapping) else None
    if kind in SHAPES and not {"stack", "encoder", "decoder"} & model.keys():
        raise SpecError(
            f"model.kind={kind}: is a shape without layers. Choose a whole model: model.preset={SHAPES[kind]} "
            f"(all of them: anyformer presets), then change single keys of it."
        )


def _named(target: str, options: Mapping[str, Any]) -> SourceSpec:
    try:
        return source_of(target, options)
    except DataError as error:
        near = difflib.get_close_matches(target, preset_names(), 1)
        if near and not Path(target).exists():
            raise SpecError(
                f"no preset, file or built-in source is called {target!r}. Did you mean {near[0]!r}?"
            ) from None
        raise error


def _with_data(document: TomlLayers) -> TomlLayers:
    """The recipe with a source and a tokenizer."""
    data = document.data.get("data", {})
    if not isinstance(data, Mapping):
        return document
    source = data.get("source", {})
    usual = {} if not isinstance(source, Mapping) or "kind" in source else _usual_source(document, source)
    kind = usual.get("kind") or (source.get("kind") if isinstance(source, Mapping) else None)
    defaults = {"source": usual} if usual else {}
    if not isinstance(data.get("tokenizer"), Mapping) or "kind" not in data["tokenizer"]:
        defaults["tokenizer"] = _given_tokenizer(document) or usual_tokenizer(kind)
    return document.on(TomlLayers.of({"data": defaults}, DEFAULT)) if defaults else document


def _given_tokenizer(document: TomlLayers) -> Tree | None:
    """The tokenizer of the run whose weights are used: of `init_from`, or of a teacher."""
    objective = document.data.get("objective")
    teacher = objective.get("teacher") if isinstance(objective, Mapping) else None
    source = document.data.get("init_from") or teacher
    if not isinstance(source, str):
        return None
    return {"kind": "file", "path": str(Path(source) / TOKENIZER)}


def _usual_source(document: TomlLayers, options: Mapping[str, Any]) -> Tree:
    """The source for the path in the recipe, or a built-in source if there is no path."""
    if isinstance(options.get("path"), str):
        return source_of(options["path"], options).to_dict()
    return {"kind": EMBEDDED.get(str(document.data["model"].get("kind")), "python_topics")}


def _with_objective(document: TomlLayers, contents: ContentsReader) -> TomlLayers:
    """The recipe with an objective."""
    section = document.data.get("objective", {})
    if not isinstance(section, Mapping):
        return document
    if "kind" in section:
        return document
    source = decode(SourceSpec, document.data["data"]["source"], "data.source")
    kind = _objective(str(document.data["model"].get("kind")), contents(source))
    return document.on(TomlLayers.of({"objective": {"kind": kind}}, DEFAULT))


def _objective(model: str, contents: Contents) -> str:
    """The kind of the objective that declares itself the default for a kind of model and a form of data."""
    discover()
    kinds = (cls for cls in Objective.kinds.values() if issubclass(cls, Objective))
    fitting = [cls.kind for cls in kinds if model in cls.default_for.get(contents.form, ())]
    if not fitting:
        raise SpecError(
            f"objective: none is the default for a {model} and data of the form {contents.form!r}. Name one."
        )
    return fitting[0]


def _facts(document: TomlLayers, vocabulary: int, contents: Contents) -> Tree:
    """Values that follow from the data, for keys that neither a file nor the command line sets."""
    known: Tree = {}
    model = document.data["model"]
    for stack in kind_of(ModelSpec, str(model.get("kind"))).stack_paths:
        key = f"model.{stack}.vocab" if stack else "model.vocab"
        if document.origin(key) == DEFAULT or document.origin(key).startswith("preset "):
            known = merge(known, {"model": {stack: {"vocab": vocabulary}} if stack else {"vocab": vocabulary}})
    classes = len(contents.tags) or len(contents.classes)
    if _counts_classes(document.data.get("objective")) and classes:
        known["objective"] = {"classes": classes}
    return known


def _counts_classes(objective: Any) -> bool:
    discover()
    kind = Objective.kinds.get(str(objective.get("kind"))) if isinstance(objective, Mapping) else None
    return kind is not None and "classes" not in objective and any(field.name == "classes" for field in fields(kind))


def provisional(document: TomlLayers) -> TomlLayers:
    """The recipe with placeholders for values that depend on the data, to find mistakes before the data are read."""
    known = _facts(document, 512, Contents(classes=("", "")))
    return TomlLayers.of(copy.deepcopy(known), FROM_DATA).on(document) if known else document


def _check_vocabulary(model: ModelSpec, needed: int) -> None:
    for stack in model.stacks.values():
        if stack.vocabulary < needed:
            raise DataError(
                f"model.vocab={stack.vocabulary}, but the tokenizer has {needed} tokens: ids outside the vocabulary. "
                f"Leave model.vocab out, or set it to {needed} or more."
            )
