"""ELECTRA: a small model fills in masked words, the model finds out which tokens it replaced.

L = L_words(generator) + 50 sum_t BCE(D(x~)_t, [x~_t != x_t]),  x~ = x with samples of the generator  (arXiv 2003.10555)
A sample that happens to be right counts as original. Sampling passes no gradient: the generator learns words only.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from anyformer.core import Frame, Model, ModelSpec, Positive, Range
from anyformer.data.batching.batch import Batch, RowTensors, framed, framed_row
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.errors import SpecError
from anyformer.models.single import Single
from anyformer.objectives.corruption import free
from anyformer.objectives.objective import Loss, Objective, Term
from anyformer.objectives.words import (
    HiddenStates,
    at_targets,
    parts_count,
    parts_term,
    read,
    refuse_decoder,
    require_single_text,
    with_target_positions,
    words_count,
    words_head,
    words_term,
)
from anyformer.parts.embeddings.factorized import Factorized
from anyformer.parts.heads.masked_words import MaskedWordsHead
from anyformer.parts.heads.token_classifier import TokenClassifier

GENERATOR, AT_ONCE = "generator", 1024
"""The companion's name, and how many of its guesses are drawn at a time."""
Portion = Annotated[float, Range(above=0.0, high=1.0)]


@dataclass(frozen=True, kw_only=True, eq=False)
class Replacement(RowTensors):
    """What is drawn before the generator runs."""

    noise: Float[Tensor, "b t"]
    """Uniform numbers from which the generator's words are drawn."""
    counted: Bool[Tensor, "b t"]
    """Tokens that the model judges."""


@dataclass(frozen=True, kw_only=True)
class ReplacedToken(Objective, kind="replaced_token"):
    """Which tokens did a small generator replace?"""

    perspective = "generalisation"

    rate: Portion = 0.15
    """Share of the tokens of each row that are masked for the generator; special tokens never are."""
    generator: ModelSpec | None = None
    """The model that fills in; if not given, the same one, narrower."""
    width: Portion = 0.25
    """Width of that generator relative to the model's."""
    embeddings: Literal["tied", "own"] = "tied"
    """Whether the generator uses the model's tables of tokens, places and types, where they are of one size."""
    weight: Positive = 50.0
    """How much finding replacements counts beside the generator's words."""

    def adapt(self, model: ModelSpec) -> ModelSpec:
        single = require_single_text(model, self.kind)
        refuse_decoder(single, self.kind)
        if single.head.outcomes == 1 and not single.head.pools:
            return single
        return replace(single, head=TokenClassifier(classes=1, hidden=single.dim))

    def companions(self, model: ModelSpec) -> Mapping[str, ModelSpec]:
        single = require_single_text(model, self.kind)
        if self.generator is None:
            return {GENERATOR: _narrow(single, self.width)}
        generator = require_single_text(self.generator, f"the generator of {self.kind}")
        refuse_decoder(generator, self.kind)
        if generator.vocab != single.vocab:
            raise SpecError(f"generator.vocab={generator.vocab} must be the model's, {single.vocab}.")
        return {GENERATOR: replace(generator, head=words_head(generator))}

    def tie(self, models: Mapping[str, Model]) -> None:
        if self.embeddings == "own":
            return
        generator, shared = models[GENERATOR], dict(models["model"].named_parameters())
        for name, parameter in list(generator.named_parameters()):
            path, _, last = name.rpartition(".")
            tables = name == "embedding.weight" or name.startswith(("position.", "types."))
            if tables and name in shared and shared[name].shape == parameter.shape:
                setattr(generator.get_submodule(path), last, shared[name])

    def lay_out(self, ids: Sequence[int], words: Vocabulary, *, packed: bool) -> list[int]:
        return framed_row(ids, words, packed=packed)

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        batch = framed(batch, words)
        chosen = choose(batch, words, self.rate, rng)
        noise = torch.rand(batch.tokens.shape, generator=rng)  # drawn here, so that no split of the batch changes it
        inputs, tokens = Replacement(noise=noise, counted=batch.counted), batch.tokens.masked_fill(chosen, words.mask)
        ready = replace(batch, tokens=tokens, targets=batch.tokens, weight=chosen.float(), inputs=inputs)
        return with_target_positions(ready)

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        replaced = batch.inputs_as(Replacement).counted.sum().float()
        return {**words_count(batch), "replaced": replaced, **parts_count(batch)}

    def loss(self, models: Mapping[str, Model], batch: Batch, rng: torch.Generator) -> Loss:
        generator = models[GENERATOR]
        first = read(generator, batch)
        filled = fill_in(generator, first.h, batch)
        second = read(models["model"], replace(batch, tokens=filled))
        terms = {**words_term(generator, first, batch), **self.judge(models["model"], batch, filled, second)}
        return {**terms, **parts_term(batch, first, second)}

    def judge(self, model: Model, batch: Batch, filled: Tensor, reading: HiddenStates) -> Loss:
        """How well the model sees what was replaced."""
        assert batch.targets is not None
        scores = reading.through(model.output_head())[..., 0].float()  # [b t]
        there, replaced = batch.inputs_as(Replacement).counted, (filled != batch.targets).float()
        losses = F.binary_cross_entropy_with_logits(scores, replaced, reduction="none")
        return {"replaced": Term(self.weight * losses.masked_fill(~there, 0.0).sum(), there.sum().float())}


def choose(batch: Batch, words: Vocabulary, rate: float, rng: torch.Generator) -> Tensor:
    """[b t], true for ceil(rate n) of the n tokens of each row that are no special ones."""
    able = free(batch.tokens, batch.counted, words)
    rank = torch.rand(able.shape, generator=rng).masked_fill(~able, 2.0).argsort(1).argsort(1)
    return rank < (able.sum(1, keepdim=True) * rate).ceil()


@torch.no_grad()
def fill_in(generator: Model, h: Tensor, batch: Batch) -> Tensor:
    """[b t]: the text with the generator's guesses at masked places, AT_ONCE at a time to limit the logits."""
    at = batch.target_positions
    assert batch.weight is not None and batch.targets is not None and at is not None
    h, targets, weight = at_targets(h, batch, batch.weight)
    noise = batch.inputs_as(Replacement).noise.gather(1, at).flatten()
    rows = zip(h.flatten(0, 1).split(AT_ONCE), noise.split(AT_ONCE), strict=True)
    drawn = [sample(generator.output_head()(some[None], Frame())[0].float(), uniform) for some, uniform in rows]
    guessed = torch.cat(drawn).view_as(targets) if drawn else targets
    return batch.targets.scatter(1, at, guessed.where(weight > 0, targets))


def sample(logits: Tensor, noise: Tensor) -> Tensor:
    """One word for each row of logits [n v], where noise [n] falls in the sum of the probabilities."""
    reach = logits.softmax(-1).cumsum(-1)
    return torch.searchsorted(reach, noise[:, None] * reach[:, -1:], right=True)[:, 0].clamp(max=logits.shape[1] - 1)


def _narrow(model: Single, share: float) -> Single:
    """The same model at a part of its width, or a little more where its heads do not divide that."""
    with torch.device("meta"):
        table = model.embedding.build(model.site(), model.vocabulary).width
    for dim in range(max(1, round(model.dim * share)), model.dim + 1):
        narrow = replace(model, dim=dim, embedding=Factorized(width=table), head=MaskedWordsHead())
        with suppress(SpecError):
            narrow.build(device="meta")
            return narrow
    raise SpecError(f"no narrower generator can be made of this {model.kind}: give objective.generator.")
