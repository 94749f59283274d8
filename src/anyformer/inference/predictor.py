"""A trained model with its tokenizer and the facts about its data that are needed to use it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from anyformer.core import Model, ModelSpec
from anyformer.data.batching.packings.packing import PackingSpec
from anyformer.data.preparation.contents import Contents
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.data.tokenizers.vocabulary import WordStarts
from anyformer.errors import SpecError
from anyformer.objectives.objective import Objective, Verb

SUGGESTIONS: Mapping[Verb, str] = {
    "generate": "train on text (next_token) or on pairs (seq2seq)",
    "fill": "train an encoder on text (masked_words, permutation), or an encoder-decoder (span_corruption)",
    "classify": "train on texts with labels: anyformer train reviews.csv data.source.label=stars",
}
"""How to get a run that serves a verb."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictor:
    """A trained model with its tokenizer, its objective and the facts about its data."""

    name: str
    spec: ModelSpec
    models: Mapping[str, Model]
    """`model`, and the companions that its objective trains along."""
    tokenizer: Tokenizer
    objective: Objective
    contents: Contents
    context: int
    """Longest sequence of training."""
    packing: PackingSpec
    """How texts were laid out in rows in training."""
    longest_target: int | None = None
    """Number of tokens of the longest target of the training pairs, <eos> included; None if there is none or it is not
    known."""
    temperature: float = 1.0
    """Divides the scores of classes, so that their probabilities are calibrated."""

    @property
    def alone(self) -> bool:
        """True if each text had a row of its own in training, with all special tokens. Pairs always look like that:
        the data mark their ends in shared rows as an objective marks them elsewhere."""
        return self.packing.alone or self.contents.pair

    @property
    def model(self) -> Model:
        """The main model."""
        return self.models["model"]

    @property
    def device(self) -> torch.device:
        """The device that the weights are on."""
        return next(self.model.parameters()).device

    @cached_property
    def word_starts(self) -> WordStarts | None:
        """The tokens that begin a word; None if the tokenizer does not show it."""
        return self.tokenizer.word_starts

    @property
    def max_len(self) -> int:
        """Longest sequence that the stack with the head reads or generates."""
        return self.spec.output_stack.max_len

    @property
    def max_target(self) -> int:
        """Most tokens that a target may have: as many as the longest one of training, if it is known."""
        return min(self.context, self.longest_target or self.context)

    @property
    def head_views(self) -> "list[Predictor]":
        """One predictor for each plain objective inside a combined one, with the model seen through its head."""
        return [
            replace(self, objective=objective, models={**self.models, "model": model})
            for objective, model in self.objective.views(self.model)
        ]

    @property
    def verbs(self) -> tuple[Verb, ...]:
        """The verbs that it serves, without duplicates."""
        return tuple(dict.fromkeys(verb for part in self.objective.parts for verb in part.serves))

    def for_task(self, verb: Verb) -> "Predictor":
        """The predictor with the objective and the head that serve a verb; SpecError names the verbs that fit."""
        for view in self.head_views:
            if verb in view.objective.serves:
                return view
        able = " or ".join(f"anyformer {each}" for each in (*self.verbs, "embed"))
        raise SpecError(
            f"{self.name}: was trained for {self.objective.kind}, so it cannot {verb}. What fits: {able}. "
            f"For a run that can {verb}: {SUGGESTIONS[verb]}."
        )

    def lay_out(self, ids: list[int]) -> list[int]:
        """One text with the special tokens that its objective puts around it in training."""
        return self.objective.lay_out(ids, self.tokenizer.words, packed=not self.alone)
