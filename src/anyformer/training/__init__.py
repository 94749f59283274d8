"""Training: recipes, the training loop, and run folders."""

from anyformer.training.loop.budget import Observer, Step
from anyformer.training.loop.trainer import Trainer
from anyformer.training.recipes.recipe import Loaded, Recipe, load, load_recipe
from anyformer.training.runs.session import Session, Watcher

__all__ = ["Loaded", "Observer", "Recipe", "Session", "Step", "Trainer", "Watcher", "load", "load_recipe"]
