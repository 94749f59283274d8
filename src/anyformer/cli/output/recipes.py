"""The recipe of a target, without torch where the catalogue suffices, and its model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyformer.core.spec import Spec
from anyformer.errors import SpecError
from anyformer.training.recipes.quick import quick_recipe

if TYPE_CHECKING:
    from anyformer.core import ModelSpec


@dataclass(frozen=True)
class ResolvedRecipe:
    """A valid recipe: its name, its values, and the origin of each."""

    name: str
    recipe: Spec
    origins: Mapping[str, str]


def resolved(target: str, overrides: Sequence[str] = ()) -> ResolvedRecipe:
    """The recipe of a preset or a file."""
    quick = quick_recipe(target, overrides)
    if quick is not None and not quick.unchecked:
        return ResolvedRecipe(quick.name, quick.recipe, quick.origins)
    from anyformer.training.recipes.resolve import outline

    loaded = outline(target, overrides)
    return ResolvedRecipe(loaded.name, loaded.recipe, loaded.origins)


def model_of(target: str, overrides: Sequence[str] = ()) -> "tuple[str, ModelSpec]":
    """The name of a recipe and its model; only the modules of this model are imported if the rest is known to be
    valid."""
    quick = quick_recipe(target, overrides)
    if quick is not None and all(path.split(".")[0] == "model" for path in quick.unchecked):
        from anyformer.core import ModelSpec, decode

        try:
            return quick.name, decode(ModelSpec, quick.recipe.to_dict()["model"], "model")
        except SpecError:
            pass  # outline names the file of each mistake too
    from anyformer.training.recipes.resolve import outline

    loaded = outline(target, overrides)
    return loaded.name, loaded.recipe.model
