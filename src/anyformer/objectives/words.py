"""Shared by objectives that predict words: the model they need, one pass over a batch, and the loss over the words.

A pair is read by an encoder-decoder as it is. A model with one stack reads it in one row: source, separator, target,
the separator being the last token of the source (arXiv 1801.10198, section 4.2.3).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from anyformer.core import Frame, Head, HeadSpec, MaskRule, Model, ModelSpec, PartSpec, ReadingMarks, Site
from anyformer.data.batching.batch import Batch
from anyformer.errors import DataError, SpecError
from anyformer.models.single import Single
from anyformer.objectives.objective import Loss, Objective, Term
from anyformer.parts.heads.tied import Tied

WORDS = "words"
"""Name of the head over words and of its term."""
PARTS = "parts"
"""Name of the term with the auxiliary losses of the model's parts: n x (their mean over n tokens), with weight n."""
POSITIONS_STEP = 16
"""The number of target positions is a multiple of it, so that there are few shapes and graphs."""


def require_single_text(model: ModelSpec, objective: str) -> Single:
    """The model, if it reads one text at a time; otherwise a SpecError that names the objective."""
    if model.needs_source:
        raise SpecError(
            f"{objective} reads one text, but {model.kind} needs a source and a target. Use an encoder or a decoder, "
            f'or give it the answers as texts: objective.kind = "seq2seq".'
        )
    return single(model)


def single(model: ModelSpec) -> Single:
    """A model that is known to have one stack, with its type."""
    assert isinstance(model, Single)
    return model


def words_head(model: ModelSpec, otherwise: HeadSpec = Tied()) -> HeadSpec:  # noqa: B008
    """The model's head over words, or `otherwise` if it has none."""
    head = model.output_stack.head.named(WORDS)
    return head if head.scores_words else otherwise


def require_causal(model: ModelSpec, objective: str) -> ModelSpec:
    """The model with a head over words, if it generates from left to right."""
    if not model.output_stack.causal:
        raise SpecError(
            f"{objective}: an encoder sees the answer, it reads in both directions. "
            f'Use a decoder, or objective.kind = "masked_words".'
        )
    return model.with_head(words_head(model))


def require_decoder(model: ModelSpec, objective: str) -> Single:
    """The model with a head over words, if it is one stack that generates from left to right."""
    if model.needs_source:
        raise SpecError(
            f"{objective} reads one text, but an encoder_decoder needs a source and a target. Use a decoder, or "
            f'objective.kind = "span_corruption" (plain text) or "seq2seq" (pairs).'
        )
    return single(require_causal(model, objective))


def require_encoder(model: ModelSpec, objective: str, otherwise: HeadSpec) -> Single:
    """The model with a head over words, if it is one stack that reads in both directions."""
    if model.needs_source:
        raise SpecError(f'{objective}: an encoder_decoder writes what is missing: objective.kind = "span_corruption".')
    refuse_decoder(model, objective)
    return single(model.with_head(words_head(model, otherwise)))


def refuse_decoder(model: ModelSpec, objective: str) -> None:
    """Raises SpecError if the model reads in one direction only."""
    if model.output_stack.causal:
        raise SpecError(
            f"{objective} fills gaps from both sides, a decoder sees one. Use an encoder "
            '(model.preset=small-encoder), or objective.kind = "next_token".'
        )


def ruled(model: Single, rule: MaskRule) -> tuple[Single, int]:
    """The model with a mask rule added to every part that has one, and the number of such parts."""
    masked = [(path, spec) for path, spec in model.walk() if isinstance(spec, PartSpec) and "mask" in vars(spec)]
    for path, spec in masked:
        mask = vars(spec)["mask"]
        model = model.with_(f"{path}.mask", rule if mask is None or mask.is_causal else mask & rule)
    return model, len(masked)


def mixes_without_a_rule(model: Single) -> str | None:
    """The kind of a part that mixes tokens without a mask rule; None if there is none."""
    parts = [spec for _, spec in model.walk() if isinstance(spec, PartSpec) and "mask" not in vars(spec)]
    for part in parts:
        if sum(isinstance(inner, PartSpec) for _, inner in part.walk()) > 1:
            continue  # a wrapper, whose inner parts are in the list
        try:
            with torch.device("meta"):
                mixes = bool(tree_leaves(part.place(Site(dim=model.dim)).init_state(1, 4)))  # it has a decoding state
        except SpecError:  # it cannot be causal at all
            mixes = True
        if mixes:
            return part.kind
    return None


class HiddenStates(NamedTuple):
    """The output of the last layer for a batch, before any head."""

    h: Tensor
    frame: Frame
    auxiliary_loss: Tensor | None = None
    """Sum of the losses of the model's parts, such as the balance of a router; None if no part has one."""

    def through(self, head: Head) -> Tensor:
        """The output of a head for these hidden states."""
        return head(self.h, self.frame)


def read(model: Model, batch: Batch) -> HiddenStates:
    """One pass over a batch; the frame is the one behind the last layer."""
    out, memory = model(batch.tokens, batch.frame, logits=False), batch.frame.memory
    losses = [*out.losses.values(), *(() if memory is None else memory.losses.values())]
    return HiddenStates(out.y, out.frame or batch.frame, torch.stack(losses).sum() if losses else None)


def row_count(batch: Batch) -> Tensor:
    """The number of rows whose label counts, as the weight of a term."""
    if batch.labels.weight is not None:
        return batch.labels.weight.sum()
    # `torch.tensor` would copy from the host, which a CUDA graph cannot capture; `torch.full` launches a kernel
    return torch.full((), len(batch.tokens), dtype=torch.float32, device=batch.tokens.device)


def parts_count(batch: Batch) -> Mapping[str, Tensor]:
    """Number of tokens that count, on both sides of a pair: the weight of the term."""
    sides = (batch,) if batch.source is None else (batch, batch.source)
    return {PARTS: torch.stack([side.valid.sum() for side in sides]).sum().float()}


def parts_term(batch: Batch, *readings: HiddenStates) -> Loss:
    """The auxiliary losses of one or several passes over the batch; empty if no part has one."""
    losses = [reading.auxiliary_loss for reading in readings if reading.auxiliary_loss is not None]
    if not losses:
        return {}
    tokens = parts_count(batch)[PARTS]
    return {PARTS: Term(torch.stack(losses).sum() * tokens, tokens)}


def parts_together(losses: Iterable[Loss]) -> Loss:
    """The sum of the terms of several batches, each of other tokens."""
    terms = [loss[PARTS] for loss in losses if PARTS in loss]
    if not terms:
        return {}
    sums, weights = (torch.stack(values).sum() for values in zip(*terms, strict=True))
    return {PARTS: Term(sums, weights)}


def words_count(batch: Batch) -> Mapping[str, Tensor]:
    """The sum of the weights of all words that are scored."""
    assert batch.weight is not None
    extra = batch.source.weight if batch.source is not None else None
    return {WORDS: batch.weight.sum() if extra is None else batch.weight.sum() + extra.sum()}


def text_count(batch: Batch) -> Mapping[str, Tensor]:
    """The counts of an objective whose only terms are words and the losses of parts."""
    return {**words_count(batch), **parts_count(batch)}


def words_loss(model: Model, batch: Batch, smoothing: float = 0.0, z: float = 0.0) -> Loss:
    """The loss over the words of a batch, from one pass."""
    reading, read_as = read_pair(model, batch)
    return {**words_term(model, reading, read_as, smoothing, z), **parts_term(batch, reading)}


class WordPrediction(Objective):
    """An objective whose only terms are words and the auxiliary losses of parts."""

    scored_by_weight = True

    smoothing: float = 0.0
    z: float = 0.0

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return text_count(batch)

    def loss(self, models: Mapping[str, Model], batch: Batch, rng: torch.Generator) -> Loss:
        return words_loss(models["model"], batch, self.smoothing, self.z)


def words_term(model: Model, reading: HiddenStates, batch: Batch, smoothing: float = 0.0, z: float = 0.0) -> Loss:
    """The loss over the words of a batch whose hidden states are known."""
    assert batch.weight is not None
    h, targets, weight = at_targets(reading.h, batch, batch.weight)
    total = model.output_head().named(WORDS).loss(h, reading.frame, targets, weight, smoothing, z)
    return {WORDS: Term(total, batch.weight.sum())}


def with_target_positions(batch: Batch, also: Tensor | None = None) -> Batch:
    """The batch with the positions [b k] that predict a word, or have a weight in `also`. They are computed on the CPU,
    so that no compiled or GPU code has shapes that depend on data; shorter rows are padded with other positions."""
    assert batch.weight is not None
    scored = (batch.weight if also is None else batch.weight + also) > 0
    most = max(scored.sum(1).tolist(), default=0)
    width = min(-(-most // POSITIONS_STEP) * POSITIONS_STEP, scored.shape[1])
    at = scored.long().argsort(dim=1, descending=True, stable=True)[:, :width]
    return replace(batch, target_positions=at)


def at_targets(h: Tensor, batch: Batch, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, targets and weights at the positions that predict a word, or at all positions."""
    assert batch.targets is not None
    at = batch.target_positions
    if at is None:
        return h, batch.targets, weight
    return h.gather(1, at[..., None].expand(-1, -1, h.shape[-1])), batch.targets.gather(1, at), weight.gather(1, at)


def read_pair(model: Model, batch: Batch) -> tuple[HiddenStates, Batch]:
    """One pass over a text or a pair, and the batch as it was read."""
    source, read_as = batch.source, as_read(model, batch)
    if source is None or read_as.source is None:
        return read(model, read_as), read_as
    memory = model.encode(source.tokens, source.frame)
    return read(model, replace(batch, frame=replace(batch.frame, memory=memory))), batch


def as_read(model: Model, batch: Batch) -> Batch:
    """The batch, with each pair in one row if the model has no encoder for the source."""
    return batch if batch.source is None or model.needs_source else in_one_row(batch)


def in_one_row(batch: Batch) -> Batch:
    """Source and target in one row; the target starts from the separator at the end of the source."""
    source = batch.source
    assert source is not None and batch.targets is not None and batch.weight is not None
    if source.shared:
        raise DataError(
            "several pairs are packed into a row, and a model with one stack reads each in a row of its own. "
            'Use an encoder_decoder, or set data.packing = "bucket".'
        )
    row, width = torch.arange(len(source.tokens), device=source.tokens.device), source.tokens.shape[1]
    last = source.valid.sum(1) - 1
    tokens = torch.cat((source.tokens, batch.tokens), dim=1)
    tokens[row, width] = source.tokens[row, last]
    valid = torch.cat((source.valid, batch.valid), dim=1)
    valid[row, last] = False
    zeros = torch.zeros_like(source.tokens)
    targets = zeros if source.targets is None else source.targets
    weight = zeros.to(batch.weight) if source.weight is None else source.weight
    return Batch(
        tokens=tokens,
        frame=Frame(valid=valid, positions=(valid.cumsum(1) - 1).clamp(min=0), marks=ReadingMarks(prefix=last + 1)),
        targets=torch.cat((targets, batch.targets), dim=1),
        weight=torch.cat((weight, batch.weight), dim=1),
        labels=batch.labels,
    )
