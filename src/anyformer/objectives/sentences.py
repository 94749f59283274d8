"""Two parts of a text and how they belong together: what stands beside the words when an encoder is pre-trained.

next_sentence    B follows A, or is from another text               (BERT, arXiv 1810.04805)
sentence_order   A and B, or B and A                                (ALBERT, arXiv 1909.11942)
three_way        B follows A, goes before it, or is from another    (StructBERT, arXiv 1908.04577)
A row is <cls> A <sep> B <sep> with types 0 and 1; what the data give as pairs are taken as they are.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Model
from anyformer.data.batching.batch import Batch, RowLabels
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.models.single import Single
from anyformer.objectives.document_bounds import documents, relaid
from anyformer.objectives.objective import Loss, Term
from anyformer.objectives.transformations import Layout
from anyformer.objectives.words import WORDS, HiddenStates
from anyformer.parts.heads.classifier import Classifier
from anyformer.parts.heads.several import Several
from anyformer.parts.pools.first import First

ORDER = "order"
"""Name of the head and of the term."""
Sentences = Literal["none", "next_sentence", "sentence_order", "three_way"]
Pair = tuple[list[int], list[int]]
_FATES: Mapping[str, tuple[str, ...]] = {
    "next_sentence": ("next", "random"),
    "sentence_order": ("next", "previous"),
    "three_way": ("next", "previous", "random"),
}


def with_order(model: Single, sentences: Sentences) -> Single:
    """The model with a class for each pair beside its words, and with types to tell the two apart."""
    if sentences == "none":
        return model
    classes = len(_FATES[sentences])
    order = Classifier(classes=classes, pool=First(), hidden=model.dim)
    head = Several(heads={WORDS: model.head, ORDER: order}, main=WORDS)
    return replace(model, types=max(model.types, 2), head=head)


def pair_up(batch: Batch, sentences: Sentences, words: Vocabulary, rng: torch.Generator) -> Batch:
    """A row for each pair, no longer than the rows that came."""
    pairs, fates = _pairs(batch, words, rng), _FATES[sentences]
    labels = torch.randint(len(fates), (len(pairs),), generator=rng)
    if len(pairs) == 1 and fates[int(labels)] == "random":
        labels = torch.zeros_like(labels)  # there is no other text to take from
    met = [_meet(pairs, place, fates[label], rng) for place, label in enumerate(labels.tolist())]
    width = batch.tokens.shape[1] + (0 if batch.source is None else batch.source.tokens.shape[1])
    layout = Layout(form="bert", longest=max(width, 5))
    laid = relaid([layout.two(first, second, words) for first, second in met], words)
    return replace(laid, labels=RowLabels(label=labels))  # what was known of the rows that came does not fit these


def order_term(model: Model, reading: HiddenStates, batch: Batch) -> Loss:
    """How well the model knows which pairs belong together."""
    scores, labels = model.output_head().named(ORDER)(reading.h, reading.frame).float(), batch.labels.label
    assert labels is not None
    return {ORDER: Term(F.cross_entropy(scores, labels, reduction="sum"), _count(batch))}


def order_count(batch: Batch) -> Mapping[str, Tensor]:
    return {ORDER: _count(batch)}


def _count(batch: Batch) -> Tensor:
    return torch.tensor(float(len(batch.tokens)), device=batch.tokens.device)


def _pairs(batch: Batch, words: Vocabulary, rng: torch.Generator) -> list[Pair]:
    """The data's own pairs, or every document cut in two at a place of chance."""
    if batch.source is not None:
        return list(zip(documents(batch.source, words), documents(batch, words), strict=True))
    texts = [text for text in documents(batch, words) if len(text) > 1]
    cuts = [1 + int(torch.randint(len(text) - 1, (), generator=rng)) for text in texts]
    return [(text[:cut], text[cut:]) for text, cut in zip(texts, cuts, strict=True)]


def _meet(pairs: list[Pair], place: int, fate: str, rng: torch.Generator) -> Pair:
    first, second = pairs[place]
    if fate == "next":
        return first, second
    if fate == "previous":
        return second, first
    step = 1 + int(torch.randint(len(pairs) - 1, (), generator=rng))
    return first, pairs[(place + step) % len(pairs)][1]
