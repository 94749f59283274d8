"""What the objectives share that ask for words: the model for them, one pass, and the sum over the words.

A pair is read by an encoder-decoder as it is. A model with one stack reads it in one row: source, separator, target,
the separator being the last token of the source (arXiv 1801.10198, section 4.2.3).
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from anyformer.core import Causal, Frame, HeadSpec, MaskRule, Model, ModelSpec, PartSpec, Site
from anyformer.data.batching.batch import Batch
from anyformer.errors import DataError, SpecError
from anyformer.models.encoder_decoder import EncoderDecoder, EncoderDecoderModel
from anyformer.models.single import Single
from anyformer.objectives.heads import HiddenStates, RecordingModel, head_of, read, speaker, with_head, words_head
from anyformer.objectives.objective import Loss, Term
from anyformer.objectives.own import parts_count, parts_term
from anyformer.parts.heads.tied import Tied

WORDS = "words"
"""Name of the head and of the term."""
ASKED_STEP = 16
"""The number of target positions is a multiple of it: few sizes, few graphs."""


def writer(model: ModelSpec, who: str) -> ModelSpec:
    """The model with a head over words, if it writes from left to right."""
    if not speaker(model).causal:
        raise SpecError(
            f"{who}: an encoder sees the answer, it reads in both directions. "
            f'Use a decoder, or objective.kind = "masked_words".'
        )
    return with_head(model, words_head(model, Tied()))


def decoder(model: ModelSpec, who: str) -> Single:
    """The same, if it has one stack."""
    if isinstance(model, EncoderDecoder):
        raise SpecError(
            f"{who} reads one text, but an encoder_decoder wants a source and a target. Use a decoder, or "
            f'objective.kind = "span_corruption" (plain text) or "seq2seq" (pairs).'
        )
    return speaker(writer(model, who))


def encoder(model: ModelSpec, who: str, otherwise: HeadSpec) -> Single:
    """The model with a head over words, if it reads in both directions."""
    if isinstance(model, EncoderDecoder):
        raise SpecError(f'{who}: an encoder_decoder writes what is missing: objective.kind = "span_corruption".')
    single = speaker(model)
    if single.causal:
        raise SpecError(
            f'{who} fills gaps from both sides, a decoder sees one. Use an encoder, or objective.kind = "next_token".'
        )
    return replace(single, head=words_head(single, otherwise))


def ruled(model: Single, rule: MaskRule) -> tuple[Single, int]:
    """The model in which every part that looks by a rule keeps this one too, and how many there are."""
    found = [(path, spec) for path, spec in model.walk() if isinstance(spec, PartSpec) and "mask" in vars(spec)]
    for path, spec in found:
        mask = vars(spec)["mask"]
        model = model.with_(f"{path}.mask", rule if mask is None or isinstance(mask, Causal) else mask & rule)
    return model, len(found)


def mixes_without_a_rule(model: Single) -> str | None:
    """The kind of a part that looks at other tokens and asks no mask; None: there is none."""
    for _, spec in model.walk():
        if not isinstance(spec, PartSpec) or "mask" in vars(spec):
            continue
        wraps = sum(isinstance(inner, PartSpec) for _, inner in spec.walk()) > 1
        if not wraps and _mixes(spec, model.dim):
            return spec.kind
    return None


def _mixes(part: PartSpec, dim: int) -> bool:
    """What looks at others must keep something of them to read left to right, or cannot do it at all."""
    try:
        with torch.device("meta"):
            return bool(tree_leaves(part.build(Site(dim=dim)).init_state(1, 4)))
    except SpecError:
        return True


def words_count(batch: Batch) -> Mapping[str, Tensor]:
    """How many words will be scored."""
    assert batch.weight is not None
    extra = batch.source.weight if batch.source is not None else None
    return {WORDS: batch.weight.sum() if extra is None else batch.weight.sum() + extra.sum()}


def text_count(batch: Batch) -> Mapping[str, Tensor]:
    """The same of an objective that has nothing but them."""
    return {**words_count(batch), **parts_count(batch)}


def words_loss(model: Model, batch: Batch, smoothing: float = 0.0, z: float = 0.0) -> Loss:
    """One pass, and the sum over the words."""
    reading, read_as = read_pair(model, batch)
    return {**words_term(model, reading, read_as, smoothing, z), **parts_term(batch, reading)}


def words_term(model: Model, reading: HiddenStates, batch: Batch, smoothing: float = 0.0, z: float = 0.0) -> Loss:
    """The sum over the words of what was read."""
    assert batch.weight is not None
    h, targets, weight = asked_of(reading.h, batch, batch.weight)
    head = head_of(model).named(WORDS)
    return {WORDS: Term(head.loss(h, reading.frame, targets, weight, smoothing, z), batch.weight.sum())}


def asking(batch: Batch, also: Tensor | None = None) -> Batch:
    """The batch with the places [b k] where it asks for a word, if those are few: found here, where they are known, so
    that neither a compiler nor a GPU meets a size that depends on them. Rows that ask less go on with other places."""
    assert batch.weight is not None
    wanted = (batch.weight if also is None else batch.weight + also) > 0
    most = max(wanted.sum(1).tolist(), default=0)
    width = min(-(-most // ASKED_STEP) * ASKED_STEP, wanted.shape[1])
    at = wanted.long().argsort(dim=1, descending=True, stable=True)[:, :width]
    return replace(batch, target_positions=at)


def asked_of(h: Tensor, batch: Batch, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, targets and weights of the places that ask, or of all."""
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
    """A pair in one row, where the model has no encoder for its source."""
    return batch if batch.source is None or _has_encoder(model) else in_one_row(batch)


def _has_encoder(model: Model) -> bool:
    return isinstance(model.whole.module if isinstance(model, RecordingModel) else model, EncoderDecoderModel)


def in_one_row(batch: Batch) -> Batch:
    """Source and target in one row. The last token of the source, its separator, is what the target starts from."""
    source = batch.source
    assert source is not None and batch.targets is not None and batch.weight is not None
    if source.shared:
        raise DataError(
            "several pairs are packed into a row, and a model with one stack reads each in a row of its own. "
            'Use an encoder_decoder, or set data.packing = "bucket".'
        )
    (rows, width), there = source.tokens.shape, source.valid
    row, last = torch.arange(rows, device=there.device), there.sum(1) - 1
    tokens = torch.cat((source.tokens, batch.tokens), dim=1)
    tokens[row, width] = source.tokens[row, last]
    valid = torch.cat((there, batch.valid), dim=1)
    valid[row, last] = False
    none = torch.zeros_like(source.tokens)
    targets = none if source.targets is None else source.targets
    weight = none.to(batch.weight) if source.weight is None else source.weight
    return Batch(
        tokens=tokens,
        frame=Frame(valid=valid, positions=(valid.cumsum(1) - 1).clamp(min=0), prefix=last + 1),
        targets=torch.cat((targets, batch.targets), dim=1),
        weight=torch.cat((weight, batch.weight), dim=1),
        labels=batch.labels,
    )
