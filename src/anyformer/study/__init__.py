"""Studies: the same recipe in several variants, matched, repeated over seeds, and judged."""

from anyformer import load_lazily

__getattr__, __dir__ = load_lazily(__name__)
