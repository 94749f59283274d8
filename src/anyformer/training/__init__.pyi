"""The names of `anyformer.training`, which are loaded on first use."""

from anyformer.training.loop.budget import Observer as Observer
from anyformer.training.loop.budget import Step as Step
from anyformer.training.loop.trainer import Trainer as Trainer
from anyformer.training.recipes.recipe import Loaded as Loaded
from anyformer.training.recipes.recipe import Recipe as Recipe
from anyformer.training.recipes.recipe import load as load
from anyformer.training.recipes.recipe import load_recipe as load_recipe
from anyformer.training.runs.session import Session as Session
from anyformer.training.runs.session import Watcher as Watcher
from anyformer.training.sharding import divide as divide
from anyformer.training.sharding import read_shards as read_shards
from anyformer.training.sharding import write_shards as write_shards
from anyformer.training.tensor_parallel import gather as gather
from anyformer.training.tensor_parallel import split_layers as split_layers
