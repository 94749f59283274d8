"""The recipe of a run as a value, and its construction from a file, a preset and overrides."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import anyformer.models  # noqa: F401  (the three shapes join their family)
from anyformer.core import Amount, Count, ModelSpec, Spec, decode
from anyformer.core.fields import leaves
from anyformer.core.paths import Tree, split
from anyformer.core.schema import tables
from anyformer.data.preparation.pipeline import DataSpec
from anyformer.errors import Problem, SpecError
from anyformer.objectives.objective import Objective
from anyformer.optim.adamw import AdamW
from anyformer.optim.optimizer import OptimizerSpec
from anyformer.optim.schedule import ScheduleSpec
from anyformer.optim.schedules.cosine import Cosine
from anyformer.training.recipes.settings import CheckpointSpec, EvaluateSpec, LogSpec, SampleSpec, TrainSpec
from anyformer.training.recipes.toml_layers import COMMAND_LINE, DEFAULT, FORMAT, TomlLayers, read


@dataclass(frozen=True, kw_only=True)
class Recipe(Spec):
    """The complete configuration of a run."""

    format: Count = FORMAT
    """Version of the file format."""
    name: str | None = None
    """Name of the run; the file's own name if not given."""
    seed: Amount = 0
    """Seed of weights, data order, dropout and all other random numbers, except the split (data.seed)."""
    init_seed: Amount | None = None
    """Seed of the initial weights; `seed` if not given. Arms of a study share the data order but not this seed."""
    model: ModelSpec
    """The model; its vocabulary is that of the tokenizer unless set."""
    data: DataSpec | None = None
    """The training data; built-in text if not given."""
    objective: Objective | None = None
    """The training objective; the default for the model and the data if not given."""
    optimizer: OptimizerSpec = AdamW()
    """The optimiser."""
    schedule: ScheduleSpec = Cosine()
    """How the learning rate changes over the run."""
    train: TrainSpec = TrainSpec()
    """Budget, batch size, precision and device."""
    evaluate: EvaluateSpec = EvaluateSpec()
    """Validation during training."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """When checkpoints are saved, and which are kept."""
    log: LogSpec = LogSpec()
    """Logging of metrics."""
    sample: SampleSpec = SampleSpec()
    """Samples generated during training."""
    init_from: str | None = None
    """A run whose weights to start from, for all tensors whose names and shapes agree."""

    @property
    def weights_seed(self) -> int:
        """The seed of the initial weights."""
        return self.seed if self.init_seed is None else self.init_seed

    def check(self) -> None:
        if self.train.segments != "carry":
            return
        if self.data is None or not self.data.packing.continues:
            raise SpecError('train.segments=carry needs rows that continue in the next batch: data.packing = "stream".')
        if self.objective is not None and not self.objective.continues_rows:
            raise SpecError(
                f"train.segments=carry is for continuous text, but {self.objective.kind} reads each row separately. "
                f'Use objective.kind = "next_token".'
            )
        if self.train.recompute != "none":
            raise SpecError('train.segments=carry does not support recomputation. Set train.recompute = "none".')


@dataclass(frozen=True)
class Loaded:
    """A recipe with its name and the origin of every value: a file, a preset, the command line, or a default."""

    name: str
    recipe: Recipe
    origins: Mapping[str, str]


def load(target: str | Path, *overrides: str) -> ModelSpec:
    """The model of a preset or a recipe file: `load("gpt2", "model.stack.depth=6")`."""
    return load_recipe(target, overrides).recipe.model


def load_recipe(target: str | Path, overrides: Sequence[str] = ()) -> Loaded:
    """A preset's name or a path to a .toml file, with dotted overrides on top; validated once, as a whole."""
    document = read(target, overrides)
    return decode_recipe(document, Path(target).name.removesuffix(".toml"))


def decode_recipe(document: TomlLayers, name: str) -> Loaded:
    """Decodes and validates a recipe; the error lists all problems at once."""
    _refuse_bare_model(document)
    _refuse_study(document)
    document = document.on(TomlLayers.of(_usual_kinds(document.data), DEFAULT))
    try:
        recipe = decode(Recipe, document.data)
    except SpecError as error:
        strays = dict(_strays(document.data))
        raise SpecError(problems=[_explain(problem, strays, document) for problem in error.problems]) from None
    origins = {key: document.origin(key) for key, _ in leaves(recipe.to_dict())}
    return Loaded(recipe.name or name, recipe, origins)


def _usual_kinds(data: Tree) -> Tree:
    """The default kinds of sections that are set without one: `optimizer.lr=1e-4` refers to the default optimiser."""
    usual = {field.name: field.default for field in fields(Recipe) if isinstance(field.default, Spec)}
    return {
        name: {"kind": default.kind}
        for name, default in usual.items()
        if default.kind and isinstance(data.get(name), dict) and "kind" not in data[name]
    }


def _refuse_bare_model(document: TomlLayers) -> None:
    known = {field.name for kind in ModelSpec.kinds.values() for field in fields(kind)} | {"kind", "preset"}
    model_keys = [key for key in document.data if key in known]
    if "model" not in document.data and model_keys:
        place = document.origin(model_keys[0])
        raise SpecError(f"{place}: {', '.join(model_keys)} at the top: this is a model. Put it under [model].")


def _refuse_study(document: TomlLayers) -> None:
    """Raises SpecError if the document is a study file instead of a recipe."""
    key = next((key for key in ("study", "arms") if key in document.data), None)
    if key:
        raise SpecError(f"[{key}]: this is a study of several models. Run it: anyformer compare FILE.")


def _strays(data: Tree) -> Iterator[tuple[str, str]]:
    """Keys in the wrong section of a recipe, with a hint at the right section."""
    recipe_tables = list(tables(Recipe, data))
    homes: dict[str, list[str]] = {"preset": ["model"]}
    for path, cls, _ in recipe_tables:
        for name in (field.name for field in fields(cls)):
            homes.setdefault(name, []).append(path)
    for path, cls, table in recipe_tables:
        known = {field.name for field in fields(cls)} | {"kind"}
        for key in (key for key in table if key not in known and key in homes):
            nearest = sorted(homes[key], key=lambda home: len(split(home)))[:3]
            places = [f"{home}.{key}" if home else key for home in nearest]
            sections = " or ".join(home or "the top" for home in nearest)
            yield f"{path}.{key}" if path else key, f"{key} belongs to {sections}: write {' or '.join(places)}."


def _explain(problem: Problem, strays: Mapping[str, str], document: TomlLayers) -> Problem:
    """The problem with the section that the key belongs to and the file that it comes from."""
    key = ".".join(split(problem.path))
    text = strays.get(key, problem.text)
    origin = document.origin(key)
    return Problem(problem.path, text if origin in (COMMAND_LINE, DEFAULT) else f"{text} (from {origin})")
