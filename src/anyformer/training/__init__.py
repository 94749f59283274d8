"""Recipes: what is to be done, as a file, and as the value that it becomes."""

from anyformer.training.recipe import Loaded, Recipe, load, load_recipe

__all__ = ["Loaded", "Recipe", "load", "load_recipe"]
