"""The model of Hugging Face that computes the same as a spec: its family, its config and its tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyformer.core import ModelSpec
from anyformer.errors import CheckpointError, Problem, SpecError
from anyformer.interop.family import Family, Relative, known_families
from anyformer.interop.mapping import to_theirs
from anyformer.interop.normal_form import LAYER, functional, normal_form, shared_tags

_BODIES = ("LMHeadModel", "MTModel")
"""Endings of classes with a head, although their names end in Model."""


@dataclass(frozen=True)
class Counterpart:
    """A model of Hugging Face that equals a spec of ours."""

    family: Family
    config: Mapping[str, Any]
    spec: ModelSpec
    """The spec that an import of the config gives: with biases where only the family has them, which are zero."""
    shared: tuple[str, ...]
    """Our tags of shared weights, which the family calls by another name."""
    interleaved: bool
    """True if sines and cosines of positions alternate here, and all sines come first there."""

    @property
    def architecture(self) -> str:
        """The class of transformers."""
        name: str = self.config["architectures"][0]
        return name

    def tensors(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Foreign tensors, in the precision of ours."""
        mine = dict(ours)
        for tag in self.shared:
            mine = {name.replace(f"shared/{tag}.", f"shared/{LAYER}."): tensor for name, tensor in mine.items()}
        if self.interleaved:
            mine = halved(mine)
        shapes = self.spec.build(device="meta").state_dict()
        if unknown := sorted(mine.keys() - shapes.keys()):
            raise CheckpointError(f"{unknown[0]}: has no counterpart in {self.architecture}.")
        dtype = next(iter(mine.values())).dtype
        for name, like in shapes.items():
            if name not in mine:  # a tensor that only they have; `can_widen` lists them all
                mine[name] = torch.full(like.shape, float(name.endswith(".gain")), dtype=dtype)
        theirs = to_theirs(self.family.tensors(self.spec), mine)
        if self.architecture.endswith("Model") and not self.architecture.endswith(_BODIES):
            return {name.removeprefix(self.family.base): tensor for name, tensor in theirs.items()}
        return theirs


def counterpart(spec: ModelSpec, model_type: str = "", architecture: str = "") -> Counterpart:
    """The model that equals a spec; SpecError names the closest family and the part that has no counterpart in it. If
    several are equal, that of `model_type` and `architecture` is taken, from which the model was imported."""
    relatives = [(family, family.relative(spec)) for family in _related(spec)]

    def distance(each: tuple[Family, Relative]) -> tuple[int, bool, int]:
        return len(each[1].differences), model_type not in each[0].model_types, _added(spec, each[1].spec)

    family, nearest = min(relatives, key=distance)
    if nearest.differences:
        raise SpecError(_refusal(family, nearest.differences))
    config = nearest.config
    if architecture in family.fixed.get("architectures", ()):
        config = {**config, "architectures": [architecture]}
    return Counterpart(family, config, nearest.spec, tuple(shared_tags(spec)), _interleaved(spec, nearest.spec))


READS = ("embedding.weight", "qkv.weight", ".q.weight", ".kv.weight", "up.weight")
WRITES = ("out.weight", "out.bias", "down.weight", "down.bias", "norm.gain", "norm.bias", "after.gain", "after.bias")
"""Endings of tensors whose columns, or rows, are the channels of the stream."""


def halved(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the same model with the even channels of the stream before the odd ones. Attention, feed-forward
    and norms do not depend on the order of the channels between them; sinusoidal positions do."""
    return {
        name: torch.cat([tensor[..., 0::2], tensor[..., 1::2]], -1)
        if name.endswith(READS)
        else torch.cat([tensor[0::2], tensor[1::2]])
        if name.endswith(WRITES)
        else tensor
        for name, tensor in tensors.items()
    }


def _interleaved(spec: ModelSpec, other: ModelSpec) -> bool:
    """True if the channels of positions are in another order in the other spec."""
    ours, theirs = functional(normal_form(spec)), functional(normal_form(other))
    return any(path.endswith("position.layout") and theirs.get(path) != value for path, value in ours.items())


def _related(spec: ModelSpec) -> list[Family]:
    """The families of the same topology, each once."""
    families = {id(family): family for family in known_families().values()}.values()
    return [family for family in families if family.template.kind == spec.kind]


def _added(spec: ModelSpec, other: ModelSpec) -> int:
    """How many fields of another spec differ from those of a spec."""
    ours, theirs = functional(normal_form(spec)), functional(normal_form(other))
    return sum(theirs.get(path) != value for path, value in ours.items())


def _refusal(family: Family, differences: list[Problem]) -> str:
    """The closest family, and the first part that differs."""
    first, more = differences[0], len(differences) - 1
    rest = f", and {more} more {'difference' if more == 1 else 'differences'}" if more else ""
    return (
        f"no model of Hugging Face that is known here computes the same. The closest is {family.model_types[0]}, which "
        f"differs in model.{first.path}: {first.text.rstrip('.')}{rest}."
    )
