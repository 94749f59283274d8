"""A recipe: what is to be done, as a value; and how a file, a preset and overrides become one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import anyformer.models  # noqa: F401  (the three shapes join their family)
from anyformer.core import Count, ModelSpec, Spec, decode
from anyformer.core.fields import leaves
from anyformer.core.paths import Tree, split
from anyformer.core.schema import tables
from anyformer.errors import Problem, SpecError
from anyformer.training.documents import COMMAND_LINE, DEFAULT, FORMAT, Document, read


@dataclass(frozen=True, kw_only=True)
class Recipe(Spec):
    """What is to be done."""

    format: Count = FORMAT
    """Version of this file's form."""
    name: str | None = None
    """What to call it; the file's own name if not given."""
    model: ModelSpec
    """The model."""


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
    _refuse_bare_model(document)
    try:
        recipe = decode(Recipe, document.data)
    except SpecError as error:
        strays = dict(_strays(document.data))
        raise SpecError(problems=[_explain(problem, strays, document) for problem in error.problems]) from None
    origins = {key: document.origin(key) for key, _ in leaves(recipe.to_dict())}
    return Loaded(recipe.name or Path(target).name.removesuffix(".toml"), recipe, origins)


def _refuse_bare_model(document: Document) -> None:
    known = {field.name for kind in ModelSpec.kinds.values() for field in fields(kind)} | {"kind", "preset"}
    found = [key for key in document.data if key in known]
    if "model" not in document.data and found:
        place = document.origin(found[0])
        raise SpecError(f"{place}: {', '.join(found)} at the top: this is a model. Put it under [model].")


def _strays(data: Tree) -> Iterator[tuple[str, str]]:
    """Keys that stand in the wrong section of a recipe, and where they belong."""
    found = list(tables(Recipe, data))
    homes: dict[str, list[str]] = {"preset": ["model"]}
    for path, cls, _ in found:
        for name in (field.name for field in fields(cls)):
            homes.setdefault(name, []).append(path)
    for path, cls, table in found:
        known = {field.name for field in fields(cls)} | {"kind"}
        for key in (key for key in table if key not in known and key in homes):
            nearest = sorted(homes[key], key=lambda home: len(split(home)))[:3]
            places = [f"{home}.{key}" if home else key for home in nearest]
            sections = " or ".join(home or "the top" for home in nearest)
            yield f"{path}.{key}" if path else key, f"{key} belongs to {sections}: write {' or '.join(places)}."


def _explain(problem: Problem, strays: Mapping[str, str], document: Document) -> Problem:
    """The same problem, with the section that a key belongs to and the file that it stands in."""
    key = ".".join(split(problem.path))
    text = strays.get(key, problem.text)
    origin = document.origin(key)
    return Problem(problem.path, text if origin in (COMMAND_LINE, DEFAULT) else f"{text} (from {origin})")
