"""Answers about a recipe without torch: its values, and mistakes in its keys, from the stand-ins of the catalogue.

Only certain answers are given. What depends on the data, on code (the `check` of a class) or on kinds of other packages
is left to the real classes, so that a valid recipe is never refused here and every message is one of theirs.
"""

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from anyformer.core.discovery import catalogue_suffices
from anyformer.core.plain_data import split
from anyformer.core.spec import Spec, decode
from anyformer.core.stand_ins import StandIn, stand_ins
from anyformer.errors import Problem, SpecError
from anyformer.training.recipes.toml_layers import TomlLayers, decode_layers, of_preset, overridden, preset_names, read

FROM_DATA = ("data", "objective")
"""Sections that are completed when the data are read."""
DATA_MODELS = ("small", "small-encoder", "small-encoder-decoder", "bag-of-n-grams")
"""Presets one of which is the model of a path to data."""
STUDY_TABLES = ("study", "arms", "downstream")


@dataclass(frozen=True)
class QuickRecipe:
    """A recipe whose keys and values are valid one by one."""

    name: str
    recipe: Spec
    origins: dict[str, str]
    unchecked: tuple[str, ...]
    """Paths of the tables whose `check` must run before the recipe is known to be valid."""


def quick_recipe(target: str, overrides: Sequence[str] = ()) -> QuickRecipe | None:
    """The recipe of a preset or a file; None if only the real classes can tell it. Raises SpecError for mistakes."""
    if not catalogue_suffices() or not _is_recipe(target):
        return None
    document = read(target, overrides)
    if mistakes := recipe_mistakes(document):
        raise SpecError(problems=mistakes)
    if "model" not in document.data or any(section in document.data for section in FROM_DATA):
        return None
    try:
        recipe, origins = decode_layers(stand_ins()["Recipe"], document)
    except SpecError:  # not certain
        return None
    name = recipe.to_dict().get("name") or Path(target).name.removesuffix(".toml")
    return QuickRecipe(name, recipe, origins, tuple(_unchecked(recipe, document)))


def refuse_mistakes(target: str, overrides: Sequence[str], find: Callable[[TomlLayers], list[Problem]]) -> None:
    """Raises SpecError for keys and values that are wrong whatever the data are. `find`: `recipe_mistakes` or
    `study_mistakes`."""
    if not catalogue_suffices():
        return
    if _is_recipe(target):
        models: Sequence[TomlLayers] = [read(target)]
    elif Path(target).is_file():
        models = [of_preset(name) for name in DATA_MODELS]
    else:
        return
    first, *others = (_problems(model, overrides, find) for model in models)
    if first and all(problems == first for problems in others):
        raise SpecError(problems=first)


def _problems(
    model: TomlLayers, overrides: Sequence[str], find: Callable[[TomlLayers], list[Problem]]
) -> list[Problem]:
    try:
        return find(overridden(model, overrides))
    except SpecError as error:  # an override that does not fit into the layers of this model
        return list(error.problems)


def recipe_mistakes(document: TomlLayers) -> list[Problem]:
    """The certain problems of a recipe."""
    try:
        if "model" in document.data:
            decode_layers(stand_ins()["Recipe"], document)
    except SpecError as error:
        return _certain(error.problems)
    return []


def study_mistakes(document: TomlLayers) -> list[Problem]:
    """The certain problems of a study: of its own table, or of a section that no arm replaces."""
    try:
        decode(stand_ins()["StudySpec"], document.data.get("study", {}), "study")
    except SpecError as error:
        return list(error.problems)
    problems = recipe_mistakes(document.without(*STUDY_TABLES))
    if any(difflib.get_close_matches(problem.path, STUDY_TABLES, 1) for problem in problems):
        return []
    return [problem for problem in problems if split(problem.path)[:1] != ["model"]]


def _is_recipe(target: str) -> bool:
    return target.endswith(".toml") or target in preset_names()


def _certain(problems: Sequence[Problem]) -> list[Problem]:
    """The problems that remain when the data are known; none if a key may belong to a section that is not there yet."""
    certain = [problem for problem in problems if not problem.text.startswith(("is missing.", "say which one: "))]
    unknown = [problem for problem in certain if "has no such key." in problem.text or " belongs to " in problem.text]
    later = _fields_from_data()
    return [] if any(split(problem.path)[-1] in later for problem in unknown) else certain


def _fields_from_data() -> set[str]:
    families = {stand_ins()[name] for name in ("DataSpec", "SourceSpec", "TokenizerSpec", "PackingSpec", "Objective")}
    return {field.name for cls in stand_ins().values() if cls.family in families for field in fields(cls)}


def _unchecked(recipe: Spec, document: TomlLayers) -> Iterator[str]:
    """Paths of tables with a `check` that reads a key which does not come from a preset."""
    keys = [key for key, origin in document.origins.items() if not origin.startswith("preset ")]
    for path, spec in recipe.walk():
        assert isinstance(spec, StandIn)
        for place in (".".join(filter(None, (path, key))) for key in spec.reads):
            if any(not place or f"{key}.".startswith(f"{place}.") or place.startswith(f"{key}.") for key in keys):
                yield path
                break
