"""The parts of templates that several families share, and the paths of their fields."""

from typing import Literal, TypeVar

from anyformer.core import NormSpec, PartSpec, Site
from anyformer.interop.mapping import choice
from anyformer.models import Block, Branch, Stack
from anyformer.models.single import Single
from anyformer.parts.heads.tied import Tied
from anyformer.parts.heads.untied import Untied
from anyformer.parts.mixers.attention import Attention

LAYER = "stack.blocks.layer.branches"
LOOK, FEED = f"{LAYER}.0.part", f"{LAYER}.1.part"
"""The attention and the feed-forward network of a layer."""
TYING = choice({True: Tied(), False: Untied()})
"""`tie_word_embeddings` <-> the head."""
P = TypeVar("P", bound=PartSpec)


def block(*parts: PartSpec, norm: NormSpec, place: Literal["pre", "post"] = "pre") -> Block:
    """A layer of these parts, all with one norm, before or after each."""
    return Block(branches=tuple(Branch(part=part, norm=norm, place=place) for part in parts))


def layers(block: Block) -> Stack:
    """A stack of this layer, for a template."""
    return Stack(blocks={"layer": block}, depth=1)


def part_of(model: Single, branch: int, kind: type[P]) -> P:
    """The part of a branch of every layer."""
    part = next(iter(model.stack.blocks.values())).branches[branch].part
    assert isinstance(part, kind)
    return part


def qkv_sizes(look: Attention, dim: int) -> tuple[int, int, int]:
    """Rows of queries, keys and values in one matrix."""
    sizes = look.sizes(Site(dim=dim))
    keys = sizes["kv_heads"] * sizes["head_dim"]
    return look.heads * sizes["head_dim"], keys, keys
