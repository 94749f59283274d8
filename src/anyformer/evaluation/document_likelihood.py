"""The likelihood of each word of whole documents: -log P(w_n | <bos> w_<n), the end included.

No document sees another. One that is longer than the context of training is read in windows that overlap by half; each
word counts once, where it has the longer context. With `overlap=0` every window begins without context.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from anyformer.core import Frame
from anyformer.errors import DataError
from anyformer.evaluation.metrics.likelihood import Likelihood
from anyformer.evaluation.metrics.score import Score, Scores
from anyformer.inference.predictor import Predictor
from anyformer.objectives.words import WORDS
from anyformer.statistics.intervals import Floats, ratio

TOGETHER, TOKENS = 256, 4096
"""Documents whose windows share batches, and tokens of a batch."""
PROBES = 256
"""Words whose loss is measured with shorter and shorter contexts."""
NEAR = 1.01
"""A context is long enough if the loss is within this factor of the loss with the longest."""


class DocumentLikelihood(NamedTuple):
    """-log P of the words of one document."""

    nats: Floats
    before: NDArray[np.int64]
    """Number of words before each word in its window."""
    size: int
    """Bytes of its text."""
    spelt: bool
    """False if it contains <unk>, so that its words do not spell the text."""


class _Window(NamedTuple):
    document: int
    inputs: list[int]
    targets: list[int]
    first: int
    """Index of the first word that counts; the ones before counted in an earlier window."""


def document_likelihoods(
    predictor: Predictor, texts: Iterable[str], overlap: float = 0.5
) -> Iterator[DocumentLikelihood]:
    """The likelihood of each document that is not empty."""
    texts, words = iter(texts), predictor.tokenizer.words
    while group := list(islice(texts, TOGETHER)):
        encoded = predictor.tokenizer.encode_batch(group)
        documents = [(text, [*ids, words.eos]) for text, ids in zip(group, encoded, strict=True) if ids]
        windows = [
            window
            for place, (_, ids) in enumerate(documents)
            for window in _windows(place, ids, predictor.context, words.bos, overlap)
        ]
        nats = [np.zeros(len(ids)) for _, ids in documents]
        before = [np.zeros(len(ids), dtype=np.int64) for _, ids in documents]
        filled = [0] * len(documents)
        for window, losses in zip(windows, window_nats(predictor, windows), strict=True):
            fresh = losses[window.first :]
            place, start = window.document, filled[window.document]
            nats[place][start : start + len(fresh)] = fresh
            before[place][start : start + len(fresh)] = np.arange(window.first, len(losses))
            filled[place] += len(fresh)
        for (text, ids), losses, context in zip(documents, nats, before, strict=True):
            yield DocumentLikelihood(losses, context, len(text.encode()), words.unk not in ids)


def _windows(place: int, ids: list[int], size: int, bos: int, overlap: float) -> Iterator[_Window]:
    step, done = max(1, size - int(size * overlap)), 0
    for start in range(0, len(ids), step):
        targets = ids[start : start + size]
        yield _Window(place, [bos, *targets[:-1]], targets, done - start)
        done = start + len(targets)
        if done == len(ids):
            return


@torch.no_grad()
def window_nats(predictor: Predictor, windows: Sequence[_Window]) -> list[Floats]:
    """-log P of every target of each window."""
    nats: list[Floats] = [np.zeros(0)] * len(windows)
    order = sorted(range(len(windows)), key=lambda place: len(windows[place].inputs))
    predictor.model.eval()
    while order:
        rows = max(1, TOKENS // len(windows[order[-1]].inputs))
        group, order = order[-rows:], order[:-rows]
        longest = len(windows[group[-1]].inputs)
        inputs, targets = (
            torch.tensor([[*row, *[0] * (longest - len(row))] for row in side], device=predictor.device)
            for side in ([windows[place].inputs for place in group], [windows[place].targets for place in group])
        )
        lengths = torch.tensor([len(windows[place].inputs) for place in group], device=predictor.device)
        there = torch.arange(longest, device=predictor.device) < lengths[:, None]
        frame = Frame(valid=None if bool(there.all()) else there)
        out = predictor.model(inputs, frame, logits=False)
        logits = predictor.model.output_head().named(WORDS)(out.y, out.frame or frame)
        losses = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)
        for place, row in zip(group, losses.double().cpu().numpy(), strict=True):
            nats[place] = row[: len(windows[place].inputs)]
    return nats


def language_scores(predictor: Predictor, texts: Iterable[str], on_progress: Callable[[int], None]) -> Scores:
    """Loss, perplexity and bits per byte."""
    sums = []
    for number, document in enumerate(document_likelihoods(predictor, texts), 1):
        sums.append((document.nats.sum(), len(document.nats), document.size, document.spelt))
        on_progress(number)
    if not sums:
        raise DataError("there is nothing to evaluate: every document is empty.")
    nats, tokens, sizes = (np.array(column, dtype=np.float64) for column in list(zip(*sums, strict=True))[:3])
    spelt = all(row[3] for row in sums)
    settings = f"windows of {predictor.context} tokens that overlap by half, ends of documents counted"
    return Likelihood(nats, tokens, "documents", sizes if spelt else None).scores(settings)


def position_scores(predictor: Predictor, texts: Iterable[str]) -> Scores:
    """Loss by the position in a window that begins without context: the cost of cutting a text into pieces."""
    documents = [(each.nats, each.before) for each in document_likelihoods(predictor, texts, overlap=0.0)]
    scores: dict[str, Score] = {}
    for low in _doubling(predictor.context):
        high = min(2 * low, predictor.context + 1)
        inside = [(before + 1 >= low) & (before + 1 < high) for _, before in documents]
        sums = [float(nats[chosen].sum()) for (nats, _), chosen in zip(documents, inside, strict=True)]
        counts = [int(chosen.sum()) for chosen in inside]
        if not any(counts):
            break
        long_enough = [place for place, count in enumerate(counts) if count]
        loss = ratio([sums[place] for place in long_enough], [counts[place] for place in long_enough])
        where = f"places {low} to {high - 1} of a window"
        tokens = f"{sum(counts):,} tokens"
        scores[f"loss_at_position_{low}"] = Score.of(loss, len(long_enough), "documents", where, tokens)
    return scores


def context_scores(predictor: Predictor, texts: Iterable[str]) -> Scores:
    """Loss of the same words with a context of 1, 2, 4, ... tokens, and from which length on more does not help."""
    longest, bos = predictor.context - 1, predictor.tokenizer.words.bos
    probes = _probes(predictor, texts, longest)
    scores: dict[str, Score] = {}
    losses: dict[int, float] = {}
    for size in [size for size in _doubling(longest) if size < longest] + [longest]:
        windows = [
            _Window(0, [bos, *past[longest - size :]], [*past[longest - size :], word], 0) for past, word in probes
        ]
        last = [float(row[-1]) for row in window_nats(predictor, windows)]
        loss = ratio(last, np.ones(len(last)))
        losses[size] = loss.value
        scores[f"loss_with_context_{size}"] = Score.of(loss, len(last), "words", f"a past of {size} tokens")
    enough = next(size for size, loss in losses.items() if loss <= NEAR * losses[longest])
    signature = f"tokens of past from which on the loss is within {NEAR - 1:.0%} of that with {longest}"
    return {**scores, "context_used": Score(float(enough), None, None, signature)}


def _probes(predictor: Predictor, texts: Iterable[str], longest: int) -> list[tuple[list[int], int]]:
    """Words with a context of `longest` tokens, drawn at random: at equal distances they might all be of one kind."""
    words: list[tuple[list[int], int]] = []
    for text in texts:
        ids = predictor.tokenizer.encode(text)
        words += [(ids[place - longest : place], ids[place]) for place in range(longest, len(ids))]
        if len(words) >= 64 * PROBES:
            break
    if not words:
        raise DataError(f"no document has more than {longest} tokens, so that its past could be cut. Give longer ones.")
    drawn = np.random.default_rng(0).permutation(len(words))[:PROBES]
    return [words[place] for place in drawn]


def _doubling(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length()) if 1 << power <= most]
