"""The base of every objective: how a batch is prepared and scored, and how the trained model answers afterwards, as a
`Predictor` with its tokenizer and the facts about its data.

Losses are sums with a weight each, never means: micro-batches and ranks add up to the loss of one big batch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from anyformer.core import Model, ModelSpec, Spec
from anyformer.core.fields import did_you_mean
from anyformer.data.batching.batch import Batch
from anyformer.data.batching.packings.packing import PackingSpec
from anyformer.data.preparation.contents import Contents
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.data.tokenizers.vocabulary import Vocabulary, WordStarts
from anyformer.errors import SpecError

Verb = Literal["generate", "fill", "classify"]
SUGGESTIONS: Mapping[Verb, str] = {
    "generate": "train on text (next_token) or on pairs (seq2seq)",
    "fill": "train an encoder on text (masked_words, permutation), or an encoder-decoder (span_corruption)",
    "classify": "train on texts with labels: anyformer train reviews.csv data.source.label=stars",
}
"""How to get a run that serves a verb."""


class Term(NamedTuple):
    """One term of a loss: the weighted sum over all positions or rows that count, and the sum of their weights."""

    sum: Tensor
    weight: Tensor

    def scaled(self, factor: float) -> "Term":
        """The term with its sum multiplied by a factor, such as the weight of a task."""
        return Term(factor * self.sum, self.weight)


Loss: TypeAlias = Mapping[str, Term]


class GapGuess(NamedTuple):
    """A candidate for a gap in a text."""

    tokens: tuple[int, ...]
    probability: float | None
    """None if the tokens were generated one after the other."""


Guesses: TypeAlias = list[list[list[GapGuess]]]
"""Of each text, of each of its gaps: the candidates, best first."""


class TrainedModel(NamedTuple):
    """A trained model as an objective needs it to answer."""

    model: Model
    words: Vocabulary
    packed: bool
    """True if texts shared rows in training."""
    generate: Callable[[Sequence[list[int]]], Sequence[Sequence[int]]]
    """The most likely continuation of each row of token ids, or the target of each source."""

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device


@dataclass(frozen=True, kw_only=True)
class Objective(Spec):
    """What a model is trained to do.

    The loss is the sum over terms of (sum over all micro-batches and ranks) / (count of that name), so every term has a
    count of its name: the sum of its weights. `counts` may name more: the auxiliary losses of a model's own parts (a
    router's balance, `Out.losses`) are one more term called "parts", present if the model has any. Each call of the
    model gives a mean over its tokens, so the term is that mean times the tokens that count, and the count is their
    number. The tasks of a mixture share this term; no weight of an objective changes it.

    An objective with "rows" in its limits compares the rows of a batch with each other: the batch must not be split.
    """

    serves: ClassVar[tuple[Verb, ...]] = ()
    """The verbs that a model can answer after training; `embed` and `search` work with every model."""
    metrics: ClassVar[tuple[str, ...]] = ("loss_terms",)
    """Kinds of the metrics (evaluation.metrics) that are meaningful for it, in the order of their display."""
    default_for: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Form of the data (`Contents.form`) -> kinds of model for which a recipe without an objective uses this one."""
    compares_texts: ClassVar[bool] = False
    """True if the vectors of texts are trained to be compared with each other."""
    packed_pairs: ClassVar[bool] = False
    """True if a row may hold several pairs, told apart by equal segment numbers on both sides."""
    continues_rows: ClassVar[bool] = False
    """True if a row may continue in the next batch from the carried state of the model (truncated BPTT)."""
    scored_by_weight: ClassVar[bool] = False
    """True if the loss is a sum over `Batch.weight` or `RowLabels.weight`, so that rows of weight 0 can be added."""

    def __init_subclass__(cls, kind: str | None = None) -> None:
        for name, value, example in (("serves", cls.serves, "generate"), ("metrics", cls.metrics, "likelihood")):
            if isinstance(value, str):
                raise SpecError(
                    f'{cls.__name__}: {name} must be a tuple, got {value!r}. Write {name} = ("{example}",).'
                )
        for verb in cls.serves:
            if verb not in SUGGESTIONS:
                known = did_you_mean(verb, SUGGESTIONS)
                raise SpecError(f"{cls.__name__}: serves names {verb!r}, which no trained model can do.{known}")
        methods = {"classify": "predict", "fill": "fill"}
        cls.optional = tuple(method for verb, method in methods.items() if verb not in cls.serves)
        super().__init_subclass__(kind)

    def adapt(self, model: ModelSpec) -> ModelSpec:
        """The model with the head that this objective needs; SpecError with a model that would fit if there is none."""
        raise NotImplementedError

    def companions(self, model: ModelSpec) -> Mapping[str, ModelSpec]:
        """Specs of other models that are trained along, by name: a generator."""
        return {}

    @property
    def pretrained(self) -> Mapping[str, str]:
        """Models that come frozen from other runs, such as a teacher: name -> run folder. Training loads them."""
        return {}

    def check_pretrained(self, name: str, theirs: ModelSpec, model: ModelSpec) -> None:
        """Raises SpecError if the pretrained model of this name does not suit the model that is trained."""

    def projections(self, model: ModelSpec, theirs: Mapping[str, ModelSpec]) -> Mapping[str, Model]:
        """Models that only the loss needs, such as a matrix between the widths of a student and its teacher; `theirs`:
        the pretrained models. They are trained and stored with the others, and are no part of the trained model."""
        return {}

    @property
    def reads_taps(self) -> bool:
        """True if the loss reads values inside the layers, which compiled or recomputed layers do not give."""
        return False

    @property
    def split_refusal(self) -> str | None:
        """Why a batch may not be split into micro-batches, by this objective or one inside it; None if it may."""
        reasons = (spec.limits.get("rows") for _, spec in self.walk() if isinstance(spec, Objective))
        return next((reason for reason in reasons if reason), None)

    def tie(self, models: Mapping[str, Model]) -> None:
        """Makes the models share parameters, each counted once; called when all models are built."""

    @property
    def outcomes(self) -> int | None:
        """Number of classes to choose from; None if it is not fixed beforehand."""
        return None

    @property
    def loss_unit(self) -> str | None:
        """The unit of the loss, for the lines that announce a run; None if it is nats."""
        return None

    @property
    def unit_vectors(self) -> bool:
        """True if `embed` gives vectors of length 1, because they are compared by their angle."""
        return False

    @property
    def relays(self) -> bool:
        """True if texts are laid out in other rows than the data gave, of varying number and length."""
        return False

    @property
    def heads_vary(self) -> bool:
        """True if the heads that a batch uses depend on its rows, so that ranks may use different ones."""
        return False

    @property
    def parts(self) -> "tuple[Objective, ...]":
        """The objectives that it combines; itself if it is a plain one."""
        return (self,)

    def views(self, model: Model) -> "list[tuple[Objective, Model]]":
        """Each of its parts with the model seen through the head of that part."""
        return [(self, model)]

    def lay_out(self, ids: Sequence[int], words: Vocabulary, *, packed: bool) -> list[int]:
        """One text with its special tokens, as the model reads it in training; of a pair, the source."""
        return list(ids)

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        """The batch with inputs, targets and weights: masks, corrupts, shifts. Runs on the CPU, before the model."""
        raise NotImplementedError

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        """The weight of each term, known without the model; summed over micro-batches before any backward."""
        raise NotImplementedError

    def loss(self, models: Mapping[str, Model], batch: Batch, rng: torch.Generator) -> Loss:
        """The terms of a prepared batch; `models["model"]` is the one that is trained."""
        raise NotImplementedError

    def predict(self, model: Model, batch: Batch) -> Tensor:
        """Scores for a prepared batch: of classes [b c], of tags [b t c], or a number [b 1]. For `classify`."""
        raise NotImplementedError

    def fill(self, texts: Sequence[list[int]], trained: TrainedModel, top: int) -> Guesses:
        """At most `top` candidates for each <mask> of each text, given as token ids. For `fill`."""
        raise NotImplementedError


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
