"""A model that has learned something, with all that is needed to ask it; and what its objective makes it good for."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from anyformer.core import Frame, Head, Memory, Model, ModelSpec, Out, State
from anyformer.data.batching.packings.packing import PackingSpec
from anyformer.data.preparation.contents import Contents
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.data.tokenizers.word_starts import WordStarts
from anyformer.errors import SpecError
from anyformer.objectives.classify import Classify
from anyformer.objectives.contrastive import Contrastive
from anyformer.objectives.distillation import Distillation
from anyformer.objectives.heads import head_of, speaker
from anyformer.objectives.masked_words import MaskedWords
from anyformer.objectives.mixture import Mixture
from anyformer.objectives.multiple_choice import MultipleChoice
from anyformer.objectives.next_token import NextToken
from anyformer.objectives.objective import Objective
from anyformer.objectives.permutation import PermutationLM
from anyformer.objectives.prefix_lm import PrefixLM
from anyformer.objectives.regress import Regress
from anyformer.objectives.sentence_pairs import SentencePairs
from anyformer.objectives.seq2seq import Seq2Seq
from anyformer.objectives.span_corruption import SpanCorruption
from anyformer.objectives.token_labels import TokenLabels
from anyformer.objectives.word_order import WordOrder

Verb = Literal["generate", "fill", "classify"]
SERVES: Mapping[type[Objective], Verb] = {
    NextToken: "generate", PrefixLM: "generate", Seq2Seq: "generate",
    MaskedWords: "fill", WordOrder: "fill", SpanCorruption: "fill", PermutationLM: "fill",
    Classify: "classify", Regress: "classify", SentencePairs: "classify", TokenLabels: "classify",
    MultipleChoice: "classify",
}  # fmt: skip
"""What a model can be asked after it has learned by an objective; vectors (embed, search) it always has."""
WANTED: Mapping[Verb, str] = {
    "generate": "train on text (next_token) or on pairs (seq2seq)",
    "fill": "train an encoder on text (masked_words, permutation), or an encoder-decoder (span_corruption)",
    "classify": "train on texts with labels: anyformer train reviews.csv data.source.label=stars",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictor:
    """A model with its tokenizer, and what is known of the data it learned from."""

    name: str
    spec: ModelSpec
    models: Mapping[str, Model]
    """`model`, and its companions, if its objective has any."""
    tokenizer: Tokenizer
    objective: Objective
    contents: Contents
    context: int
    """Longest sequence that it learned from."""
    packing: PackingSpec
    """How its texts were laid out in training."""

    @property
    def alone(self) -> bool:
        """Whether it met texts as in a row of their own, all special tokens around them. Pairs always look like that:
        what the data mark in shared rows is what an objective puts behind each otherwise."""
        return self.packing.alone or self.contents.pair

    @property
    def model(self) -> Model:
        return self.models["model"]

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @cached_property
    def word_starts(self) -> WordStarts | None:
        """Which tokens begin a word; None: its tokenizer does not show it."""
        return self.tokenizer.word_starts()

    @property
    def max_len(self) -> int:
        """Tokens that it is made to write or read at most."""
        return speaker(self.spec).max_len

    @property
    def verbs(self) -> tuple[Verb, ...]:
        """What it can be asked, the first first."""
        return tuple(dict.fromkeys(verb for one, _ in aspects(self) if (verb := SERVES.get(type(one)))))

    def asked_to(self, verb: Verb) -> "Predictor":
        """The same with the objective and the head that answer; SpecError says what fits instead."""
        for objective, model in aspects(self):
            if SERVES.get(type(objective)) == verb:
                return replace(self, objective=objective, models={**self.models, "model": model})
        able = " or ".join(f"anyformer {each}" for each in (*self.verbs, "embed"))
        raise SpecError(
            f"{self.name}: was trained for {self.objective.kind}, so it cannot {verb}. What fits: {able}. "
            f"For a run that can {verb}: {WANTED[verb]}."
        )


def aspects(trained: Predictor) -> list[tuple[Objective, Model]]:
    """The plain objectives inside one that combines them, each with the model as that one sees it."""
    found, waiting = [], [(trained.objective, trained.model)]
    while waiting:
        objective, model = waiting.pop(0)
        if isinstance(objective, Distillation):
            waiting.insert(0, (objective.objective, model))
        elif isinstance(objective, Mixture):
            heads = {name: task.head or name for name, task in objective.tasks.items()}
            views = [
                (task.objective, HeadView(model, head_of(model).named(heads[name])))
                for name, task in objective.tasks.items()
            ]
            waiting[:0] = views
        else:
            found.append((objective, model))
    return found


class HeadView(Model):
    """A model seen through one of its heads, or kept from saying ids that its tokenizer does not have."""

    def __init__(self, inner: Model, head: Head, words: int | None = None):
        super().__init__()
        self.inner, self.head, self.words = inner, head, words

    def forward(self, tokens: Tensor, frame: Frame, state: State | None = None, *, logits: bool = True) -> Out:
        out = self.inner(tokens, frame, state, logits=False)
        return out.with_y(self.speak(out.y, out.frame or frame)) if logits else out

    def speak(self, h: Tensor, frame: Frame) -> Tensor:
        spoken: Tensor = self.head(h, frame)
        if self.words is not None:
            spoken = spoken.clone()
            spoken[..., self.words :] = -torch.inf
        return spoken

    def encode(self, tokens: Tensor, frame: Frame) -> Memory:
        return self.inner.encode(tokens, frame)

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        return self.inner.init_state(batch, max_len, memory)


def embeds_pairs(objective: Objective) -> bool:
    """True: its vectors were learned by comparing texts."""
    return isinstance(objective, Contrastive)
