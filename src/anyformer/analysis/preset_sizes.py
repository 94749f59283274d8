"""Layers, width, heads and weights of a preset, counted in its spec and on the meta device."""

from functools import cache

from anyformer.core import ModelSpec
from anyformer.core.fields import leaves
from anyformer.models.single import stacks_of
from anyformer.training import load


def sizes(spec: ModelSpec) -> tuple[str, str, str]:
    """Layers, width and heads of a model; values that differ between its stacks are listed for each."""
    halves = list(stacks_of(spec).values())
    heads = {str(value): None for path, value in leaves(spec.to_dict()) if path.endswith(".heads")}
    widths = {str(half.dim): None for half in halves}
    return " + ".join(str(half.stack.depth) for half in halves), " / ".join(widths), " / ".join(heads)


@cache
def weights(name: str) -> int:
    """The number of weights of a preset, counted on the meta device."""
    return sum(parameter.numel() for parameter in load(name).build(device="meta").parameters())
