"""The base of every tuning: which parameters of a model learn, and how fast.

A factor multiplies the learning rate of a parameter. A parameter with the factor 0 is frozen: it has no gradient and no
state of the optimiser.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from anyformer.core import Model, ModelSpec, Module, Spec


@dataclass(frozen=True, kw_only=True)
class TuningSpec(Spec):
    """How much of a model learns, for models that start with pre-trained weights."""

    by_name = True

    def adapt(self, model: ModelSpec) -> ModelSpec:
        """The model with the parameters that this tuning adds; a model that has them already stays as it is."""
        return model

    def factors(self, spec: ModelSpec, model: Model) -> Mapping[nn.Parameter, float]:
        """The factor on the learning rate of each parameter; 0 freezes it."""
        raise NotImplementedError

    def usual_rate(self, rate: float) -> float:
        """The learning rate that suits this tuning, where `rate` suits a model that learns as a whole."""
        return rate

    def pretrained_name(self, name: str) -> str:
        """The name that a tensor had before `adapt`."""
        return name


def freeze(tuning: TuningSpec, spec: ModelSpec, model: Model) -> dict[str, float]:
    """Turns off the gradients of parameters with the factor 0, in place. Returns the factors by the names that
    `learned` gives to the parameters of the main model."""
    factors = tuning.factors(spec, model)
    for parameter, factor in factors.items():
        parameter.requires_grad_(factor > 0)
    return {name: factors[parameter] for name, parameter in model.named_parameters("model")}


def distances_from_head(model: Model) -> dict[nn.Parameter, int]:
    """Parameter -> its distance from the head: 0 in the head, 1 in the last layer, 2 in the layer before it, and one
    more than the first layer in embeddings and everything else that is in no layer. The layers of an encoder come
    before those of its decoder."""
    heights: dict[nn.Parameter, int] = {}
    below = 0
    for stack in model.stack_models().values():
        layers = {
            path: module.layer_number
            for path, module in stack.named_modules()
            if isinstance(module, Module) and module.layer_number is not None
        }
        for name, parameter in stack.named_parameters():
            places = (name.rsplit(".", parts)[0] for parts in range(name.count("."), 0, -1))  # outermost module first
            layer = next((layers[place] for place in places if place in layers), None)
            heights.setdefault(parameter, 0 if layer is None else below + layer + 1)
        below += max(layers.values(), default=-1) + 1
    head = dict.fromkeys(model.output_head().parameters(), below + 1)
    shared = {parameter: 0 for parameter in model.parameters() if parameter not in heights}
    return {parameter: below + 1 - height for parameter, height in ({**shared, **heights, **head}).items()}
