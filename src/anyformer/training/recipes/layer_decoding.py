"""Decodes the layers of a recipe, and explains mistakes: the section that a key belongs to, the file it comes from.

The class of the recipe is an argument: the real one, or its stand-in from the catalogue, which needs no torch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import TypeVar

from anyformer.core.fields import leaves
from anyformer.core.paths import Tree, split
from anyformer.core.schema import default_of, hints_of, tables
from anyformer.core.spec import Spec, decode
from anyformer.errors import Problem, SpecError
from anyformer.training.recipes.toml_layers import COMMAND_LINE, DEFAULT, TomlLayers

S = TypeVar("S", bound=Spec)


def decode_layers(recipe_class: type[S], document: TomlLayers) -> tuple[S, dict[str, str]]:
    """The recipe, and the origin of each of its values; the error lists all problems at once."""
    _refuse_other_files(recipe_class, document)
    kinds: Tree = {}  # `optimizer.lr=1e-4` refers to the default optimiser
    for field in fields(recipe_class):
        section, default = document.data.get(field.name), default_of(field)
        if isinstance(default, dict) and "kind" in default and isinstance(section, dict) and "kind" not in section:
            kinds[field.name] = {"kind": default["kind"]}
    document = document.on(TomlLayers.of(kinds, DEFAULT))
    try:
        recipe = decode(recipe_class, document.data)
    except SpecError as error:
        strays = dict(_strays(recipe_class, document.data))
        raise SpecError(problems=[_explain(problem, strays, document) for problem in error.problems]) from None
    return recipe, {key: document.origin(key) for key, _ in leaves(recipe.to_dict())}


def _refuse_other_files(recipe_class: type[Spec], document: TomlLayers) -> None:
    """Raises SpecError if the document is a model or a study file instead of a recipe."""
    models: type[Spec] = hints_of(recipe_class)["model"]
    known = {field.name for kind in models.kinds.values() for field in fields(kind)} | {"kind", "preset"}
    model_keys = [key for key in document.data if key in known]
    if "model" not in document.data and model_keys:
        place = document.origin(model_keys[0])
        raise SpecError(f"{place}: {', '.join(model_keys)} at the top: this is a model. Put it under [model].")
    for key in ("study", "arms"):
        if key in document.data:
            raise SpecError(f"[{key}]: this is a study of several models. Run it: anyformer compare FILE.")


def _strays(recipe_class: type[Spec], data: Tree) -> Iterator[tuple[str, str]]:
    """Keys in the wrong section of a recipe, with a hint at the right section."""
    recipe_tables = list(tables(recipe_class, data))
    homes: dict[str, list[str]] = {"preset": ["model"]}
    for path, cls, _ in recipe_tables:
        for field in fields(cls):
            homes.setdefault(field.name, []).append(path)
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
    text, origin = strays.get(key, problem.text), document.origin(key)
    return Problem(problem.path, text if origin in (COMMAND_LINE, DEFAULT) else f"{text} (from {origin})")
