"""Built-in arms: one file each with the changes to a base recipe, named after the arm.

All have the same outer stack, so that only mixers differ: pre-norm residual branches, a mixer, then an mlp.
Width, depth, vocabulary, context and budget are the base recipe's.
"""

from pathlib import Path

FOLDER = Path(__file__).parent


def arm_names() -> tuple[str, ...]:
    """The names of all built-in arms."""
    return tuple(sorted(file.stem for file in FOLDER.glob("*.toml")))
