"""The normal form of a spec: equal for specs that compute the same function of the same weights.

Sizes that are left out are filled in, the only kind of layer is called `layer`, and settings of training (dropout, the
initialisation) are left out of the comparison.
"""

from collections.abc import Mapping
from typing import Any

from anyformer.core import ModelSpec, PartSpec, PositionSpec, Site
from anyformer.core.fields import leaves
from anyformer.core.plain_data import assign, split
from anyformer.models.single import Single

LAYER = "layer"
"""Name of the only kind of layer, and the tag of its weights if all layers share them."""
TRAINING = ("dropout", "drop", "init")
"""Fields that do not change what a trained model computes."""


def normal_form(spec: ModelSpec, sizes: bool = True) -> dict[str, Any]:
    """The plain data of a spec with usual names, and with every size that it leaves out; without these, only the
    names."""
    data: dict[str, Any] = spec.to_dict()
    singles = [(path, inner) for path, inner in spec.walk() if isinstance(inner, Single)]
    for path, inner in spec.walk() if sizes else ():
        host = next((single for place, single in reversed(singles) if path.startswith(place)), None)
        if host is not None and isinstance(inner, PartSpec | PositionSpec):
            for name, value in inner.sizes(Site(dim=host.dim, max_len=host.max_len)).items():
                assign(data, f"{path}.{name}", value)
    for path, _ in singles:
        _name_layers(look_up(data, f"{path}.stack"))
    return data


def _name_layers(stack: dict[str, Any]) -> None:
    """Renames the only kind of layer of a stack, in place."""
    if len(stack["blocks"]) == 1:
        (block,) = stack["blocks"].values()
        if block.get("share") is not None:
            block["share"] = LAYER
        stack |= {"blocks": {LAYER: block}, "layout": []}


def shared_tags(spec: ModelSpec) -> list[str]:
    """The tags of weights that the only kind of layer of a stack shares, which its normal form calls `layer`."""
    stacks = [inner.stack for _, inner in spec.walk() if isinstance(inner, Single)]
    only = [next(iter(stack.blocks.values())) for stack in stacks if len(stack.blocks) == 1]
    return [block.share for block in only if block.share is not None]


def functional(data: dict[str, Any]) -> dict[str, Any]:
    """The leaves of a normal form that decide what the model computes, by dotted key."""
    return {path: value for path, value in leaves(data) if not {*split(path)} & {*TRAINING} and value is not None}


def look_up(data: Any, path: str) -> Any:
    """The value at a dotted path of plain data; None if there is none."""
    for name in split(path):
        if isinstance(data, Mapping):
            data = data.get(name)
        elif isinstance(data, list) and name.isdigit() and int(name) < len(data):
            data = data[int(name)]
        else:
            return None
    return data
