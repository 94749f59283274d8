"""The base of every objective: corrupts a batch, counts what will be scored, and gives named sums.

Losses are sums with a weight each, never means: micro-batches and ranks add up to what one big batch gives.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from anyformer.core import Model, ModelSpec, Spec
from anyformer.data.batching.batch import Batch
from anyformer.data.tokenizers.vocabulary import Vocabulary


class Term(NamedTuple):
    """One term of a loss: the sum over what counts, and how much counts."""

    sum: Tensor
    weight: Tensor


Loss: TypeAlias = Mapping[str, Term]


@dataclass(frozen=True, kw_only=True)
class Objective(Spec):
    """What a model is asked to learn.

    What is minimised is the sum over terms of (sum over all micro-batches and ranks) / (count of that name), so every
    term has a count of its name, which is the sum of its weights. `counts` may name more: what the parts of a model ask
    for themselves (a router's balance, `Out.losses`) is one more term called "parts", there if the model has any. Each
    call of the model gives a mean over its tokens, so the term is that mean times the live tokens, and the count those
    tokens. In a mixture all tasks share it; no weight of an objective changes it.

    An objective with "rows" in its limits compares the rows of a batch with each other: it must not be cut.
    """

    packed_pairs: ClassVar[bool] = False
    """Whether it reads rows of several pairs, told apart by segments of the same number on both sides."""

    def adapt(self, model: ModelSpec) -> ModelSpec:
        """The model with the head that this objective needs; SpecError says why it cannot be and what would fit."""
        raise NotImplementedError

    def companions(self, model: ModelSpec) -> Mapping[str, ModelSpec]:
        """Other models that learn or teach along: a generator, a teacher."""
        return {}

    @property
    def whole(self) -> str | None:
        """Why a batch may not be cut into micro-batches, of itself or of an objective inside it; None: it may."""
        found = (spec.limits.get("rows") for _, spec in self.walk() if isinstance(spec, Objective))
        return next((reason for reason in found if reason), None)

    def tie(self, models: Mapping[str, Model]) -> None:
        """Called once when all models are built: makes them share what they share, each parameter counting once."""

    @property
    def outcomes(self) -> int | None:
        """How many classes a guess chooses from; None where that is not fixed beforehand."""
        return None

    @property
    def relays(self) -> bool:
        """Whether it lays texts out in other rows than those that came, as many and as long as the texts want."""
        return False

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        """Masks, corrupts, shifts: from tokens to inputs, targets and weights. On the CPU, before the model."""
        raise NotImplementedError

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        """How much each term will weigh, known without the model; summed over micro-batches before any backward."""
        raise NotImplementedError

    def loss(self, models: Mapping[str, Model], batch: Batch, rng: torch.Generator) -> Loss:
        """The terms on a prepared batch; `models["model"]` is the one that is trained."""
        raise NotImplementedError
