"""The arms that have a short name: what each changes in a base recipe, one file each, named after the arm.

All share one outer stack, so that a comparison is one of mixers: pre-norm residual branches, a mixer, then an mlp.
Width, depth, vocabulary, context and budget are the base recipe's.
"""

from pathlib import Path

FOLDER = Path(__file__).parent


def arm_names() -> tuple[str, ...]:
    """The name of every arm that comes with the program."""
    return tuple(sorted(file.stem for file in FOLDER.glob("*.toml")))
