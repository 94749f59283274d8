"""Core types: specs, frames, parts, masks, positions, costs and states."""

from anyformer import load_lazily

__getattr__, __dir__ = load_lazily(__name__)
