"""Blocks, stacks and the three shapes of model."""

from anyformer import load_lazily

__getattr__, __dir__ = load_lazily(__name__)
