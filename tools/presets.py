"""Write docs/presets.md: every preset with its shape, its sizes and its weights, counted and not typed."""

import argparse
import sys
from pathlib import Path

from anyformer.analysis.preset_sizes import sizes, weights
from anyformer.training import load
from anyformer.training.recipes.toml_layers import preset_file, preset_names

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/presets.md"
INTRODUCTION = """\
# Presets

Written by `python tools/presets.py` from the files in `src/anyformer/models/presets`; do not edit.

A preset is a complete model under a name: `anyformer cost gpt2` shows what it costs, `anyformer.load("gpt2")` gives it
in Python, and `preset = "gpt2"` under `[model]` starts a recipe from it. Any key can be changed on top:
`anyformer cost gpt2 model.stack.depth=6`. What follows from other sizes (a head's width, the width of the
feed-forward net) is not written in a preset, so that it follows when they change.

Presets say what a model *is*, not how it is trained: dropout is left out, except where the paper tells two sizes apart
by it (`transformer-base`, `transformer-big`). Weights are counted without heads that only pre-training needs.
The presets whose names begin with `vanilla` are the baseline of a study of modifications and those of its variants
that differ in size or sharing.
"""
HEAD = """\
| preset | shape | layers | width | heads | params | paper |
|---|---|---|---|---|---|---|"""


def described(name: str) -> tuple[str, ...]:
    """The first line of a preset's file, in parts: what it is; its paper; its published size."""
    first = preset_file(name).read_text(encoding="utf-8").splitlines()[0]
    return tuple(first.removeprefix("#").strip().split("; "))


def short(params: int) -> str:
    """Four digits and a unit."""
    unit, size = ("B", 1e9) if params >= 1e9 else ("M", 1e6)
    return f"{params / size:#.4g}{unit}"


def line(name: str) -> str:
    spec, (_, *paper) = load(name), described(name)
    shape = spec.kind.replace("_", "-")
    return f"| {' | '.join([f'`{name}`', shape, *sizes(spec), short(weights(name)), *(paper[:1] or ['–'])])} |"


def page() -> str:
    return "\n".join([INTRODUCTION, HEAD, *map(line, preset_names()), ""])


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/presets.md from the presets.")
    parser.parse_args()
    PAGE.write_text(page(), encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
