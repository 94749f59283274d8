"""A model whose matrices have int8 weights, a quarter of the bytes, for inference."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from anyformer.core.model import HeadSpec, Model, ModelSpec, StackFacts
from anyformer.core.module import InitSpec
from anyformer.core.part import PartSpec
from anyformer.core.spec import kind_of
from anyformer.errors import SpecError
from anyformer.models.decoder import Decoder
from anyformer.models.stack import Block, Branch, Stack
from anyformer.ops.int8_linear import Activations, use_int8


@dataclass(frozen=True, kw_only=True)
class Quantised(ModelSpec, kind="quantised"):
    """Another model with int8 weights in all its matrices, one symmetric scale for each output."""

    learns = False
    stack_paths: ClassVar[tuple[str, ...]] = ()  # for training, which sets the vocabulary of each stack

    model: ModelSpec
    """The model; its embeddings, norms and biases stay in floating point."""
    activations: Activations = "int8"
    """Input of the matrices: int8 with a step for each token, or float as it is."""

    def check(self) -> None:
        if not self.model.learns:
            raise SpecError(f"model.kind={self.model.kind}: is quantised already.")

    @classmethod
    def examples(cls) -> "tuple[Quantised, ...]":
        layer = Block(branches=(Branch(part=kind_of(PartSpec, "mlp")()),))
        return (cls(model=Decoder(vocab=16, dim=8, stack=Stack(blocks={"layer": layer}, depth=1))),)

    @property
    def stacks(self) -> Mapping[str, StackFacts]:
        return self.model.stacks

    def with_head(self, head: HeadSpec) -> "Quantised":
        return replace(self, model=self.model.with_head(head))

    @property
    def needs_source(self) -> bool:
        return self.model.needs_source

    @property
    def decodes(self) -> bool:
        return self.model.decodes

    @property
    def memory_width(self) -> int | None:
        return self.model.memory_width

    @property
    def scheme(self) -> InitSpec:
        return self.model.scheme

    def module(self) -> Model:
        model = self.model.module()
        use_int8(model, self.activations)
        return model
