"""Training: a recipe, the loop, and the folder that a run leaves."""

from anyformer.training.recipe import Loaded, Recipe, load, load_recipe
from anyformer.training.run import Run
from anyformer.training.session import Session, Watcher, train
from anyformer.training.step import Observer, Step
from anyformer.training.trainer import Trainer

__all__ = [
    "Loaded", "Observer", "Recipe", "Run", "Session", "Step", "Trainer", "Watcher", "load", "load_recipe", "train",
]  # fmt: skip
