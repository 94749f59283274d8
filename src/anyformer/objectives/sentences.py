"""How two parts of a text belong together: the second task in the pre-training of an encoder.

next_sentence    B follows A, or is from another text               (BERT, arXiv 1810.04805)
sentence_order   A and B, or B and A                                (ALBERT, arXiv 1909.11942)
three_way        B follows A, goes before it, or is from another    (StructBERT, arXiv 1908.04577)
A row is <cls> A <sep> B <sep> with types 0 and 1. Pairs in the data are used as they are.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Model
from anyformer.data.batching.batch import Batch, RowLabels, documents
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.models.single import Single
from anyformer.objectives.objective import Loss, Term
from anyformer.objectives.transformations import Layout, lay
from anyformer.objectives.words import WORDS, HiddenStates, row_count
from anyformer.parts.heads.classifier import Classifier
from anyformer.parts.heads.several import Several
from anyformer.parts.pools.first import First

ORDER = "order"
"""Name of the head and of the term."""
Sentences = Literal["none", "next_sentence", "sentence_order", "three_way"]
Pair = tuple[list[int], list[int]]
_RELATIONS: Mapping[str, tuple[str, ...]] = {
    "next_sentence": ("next", "random"),
    "sentence_order": ("next", "previous"),
    "three_way": ("next", "previous", "random"),
}


def with_order(model: Single, sentences: Sentences) -> Single:
    """The model with a class for each pair beside its words, and with types to tell the two apart."""
    if sentences == "none":
        return model
    order = Classifier(classes=len(_RELATIONS[sentences]), pool=First(), hidden=model.dim)
    head = Several(heads={WORDS: model.head, ORDER: order}, main=WORDS)
    return replace(model, types=max(model.types, 2), head=head)


def pair_up(batch: Batch, sentences: Sentences, words: Vocabulary, rng: torch.Generator) -> Batch:
    """A row for each pair, no longer than the rows of the batch."""
    pairs, relations = _pairs(batch, words, rng), _RELATIONS[sentences]
    labels = torch.randint(len(relations), (len(pairs),), generator=rng)
    if len(pairs) == 1 and relations[int(labels)] == "random":
        labels = torch.zeros_like(labels)  # there is no other text to take from
    width = batch.tokens.shape[1] + (0 if batch.source is None else batch.source.tokens.shape[1])
    layout, rows = Layout(form="bert", longest=max(width, 5)), []
    for index, label in enumerate(labels.tolist()):
        first, second = pairs[index]
        if relations[label] == "previous":
            first, second = second, first
        elif relations[label] == "random":
            step = 1 + int(torch.randint(len(pairs) - 1, (), generator=rng))
            second = pairs[(index + step) % len(pairs)][1]
        rows.append(layout.two(first, second, words))
    return replace(lay(rows, words), labels=RowLabels(label=labels))  # other labels of the data do not fit these rows


def _pairs(batch: Batch, words: Vocabulary, rng: torch.Generator) -> list[Pair]:
    """The pairs of the data, or every document cut in two at a random place."""
    if batch.source is not None:
        return list(zip(documents(batch.source, words), documents(batch, words), strict=True))
    texts = [text for text in documents(batch, words) if len(text) > 1]
    cuts = [1 + int(torch.randint(len(text) - 1, (), generator=rng)) for text in texts]
    return [(text[:cut], text[cut:]) for text, cut in zip(texts, cuts, strict=True)]


def order_term(model: Model, reading: HiddenStates, batch: Batch, sentences: Sentences) -> Loss:
    """The term of the classes of pairs; empty without a second task."""
    if sentences == "none":
        return {}
    assert batch.labels.label is not None
    scores = reading.through(model.output_head().named(ORDER)).float()
    return {ORDER: Term(F.cross_entropy(scores, batch.labels.label, reduction="sum"), row_count(batch))}


def order_count(batch: Batch, sentences: Sentences) -> Mapping[str, Tensor]:
    """The number of pairs; empty without a second task."""
    return {} if sentences == "none" else {ORDER: row_count(batch)}
