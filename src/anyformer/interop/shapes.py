"""The parts of templates that several families share, and the paths of their fields."""

from typing import Literal

from anyformer.core import NormSpec, PartSpec
from anyformer.models import Block, Branch

LAYER = "stack.blocks.layer.branches"
LOOK, FEED = f"{LAYER}.0.part", f"{LAYER}.1.part"
"""The attention and the feed-forward network of a layer."""


def block(*parts: PartSpec, norm: NormSpec, place: Literal["pre", "post"] = "pre") -> Block:
    """A layer of these parts, all with one norm, before or after each."""
    return Block(branches=tuple(Branch(part=part, norm=norm, place=place) for part in parts))
