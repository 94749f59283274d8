"""Training: recipes, the training loop, and run folders."""

from anyformer import load_lazily

__getattr__, __dir__ = load_lazily(__name__)
