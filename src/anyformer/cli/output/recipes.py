"""The recipe of a target, without torch where the catalogue suffices, and its model."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from anyformer.errors import DataError, SpecError
from anyformer.training.recipes.quick import QuickRecipe, quick_recipe

if TYPE_CHECKING:
    from anyformer.core import ModelSpec
    from anyformer.training.recipes.recipe import Loaded


def resolved(target: str, overrides: Sequence[str] = ()) -> "QuickRecipe | Loaded":
    """The recipe of a preset or a file, with its name and the origin of each value; it is valid."""
    quick = quick_recipe(target, overrides)
    if quick is not None and not quick.unchecked:
        return quick
    from anyformer.training.recipes.resolve import outline

    return outline(target, overrides)


def model_of(target: str, overrides: Sequence[str] = ()) -> "tuple[str, ModelSpec]":
    """The name of a recipe and its model; only the modules of this model are imported if the rest is known to be
    valid."""
    if (quick := _quick_model(target, overrides)) is not None:
        return quick[:2]
    from anyformer.training.recipes.resolve import outline

    loaded = outline(target, overrides)
    return loaded.name, loaded.recipe.model


def counted_model(target: str, overrides: Sequence[str]) -> "tuple[str, ModelSpec, str]":
    """The name and the model of a recipe with the vocabulary of its data, and where this vocabulary comes from."""
    if (quick := _quick_model(target, overrides)) is not None:
        return quick
    from anyformer.training.recipes.resolve import outline, with_vocabulary

    expected = outline(target, overrides)
    try:
        loaded = with_vocabulary(expected)
    except DataError as error:
        return expected.name, expected.recipe.model, f"expected; the data cannot be read: {error}"
    if loaded is expected:
        return expected.name, expected.recipe.model, _vocabulary_origin(expected.origins)
    assert loaded.recipe.data is not None
    return loaded.name, loaded.recipe.model, f"of the tokenizer {loaded.recipe.data.tokenizer.kind} on its data"


def _quick_model(target: str, overrides: Sequence[str]) -> "tuple[str, ModelSpec, str] | None":
    """Name, model and origin of the vocabulary, if only the modules of this model are needed to know them."""
    quick = quick_recipe(target, overrides)
    if quick is None or any(path.split(".")[0] != "model" for path in quick.unchecked):
        return None
    from anyformer.core import ModelSpec, decode

    try:
        model = decode(ModelSpec, quick.recipe.to_dict()["model"], "model")
    except SpecError:  # outline names the file of each mistake too
        return None
    return quick.name, model, _vocabulary_origin(quick.origins)


def _vocabulary_origin(origins: Mapping[str, str]) -> str:
    """Where the vocabulary comes from, if it will be another one in training; otherwise nothing."""
    origin = next((origin for key, origin in origins.items() if key.startswith("model.") and key.endswith("vocab")), "")
    return f"of the {origin}; in training, that of the tokenizer" if origin.startswith("preset ") else ""
