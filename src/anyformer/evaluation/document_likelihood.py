"""How much a language model expected each word of whole documents: -log P(w_n | <bos> w_<n), the end included.

No document sees another. One that is longer than what the model learned from is read in windows that overlap by half,
each word counted once, where it has the longer past; with `overlap=0` every window begins without any.
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
"""Documents whose windows share batches; tokens of a batch."""
PROBES = 256
"""Words whose loss is measured with shorter and shorter pasts."""
NEAR = 1.01
"""A past is long enough where the loss is within this factor of that with the longest."""


class Expected(NamedTuple):
    """The words of one document."""

    nats: Floats
    before: NDArray[np.int64]
    """Words that each had before it in its window."""
    size: int
    """Bytes of its text."""
    spelt: bool
    """False: some of it is <unk>, so that its words do not tell the text."""


class _Window(NamedTuple):
    document: int
    inputs: list[int]
    targets: list[int]
    counted: int
    """The first word that counts."""


def expect(predictor: Predictor, texts: Iterable[str], overlap: float = 0.5) -> Iterator[Expected]:
    """What was expected of each document that is not empty."""
    texts, words = iter(texts), predictor.tokenizer.words
    while some := list(islice(texts, TOGETHER)):
        encoded = predictor.tokenizer.encode_batch(some)
        kept = [(text, [*ids, words.eos]) for text, ids in zip(some, encoded, strict=True) if ids]
        windows = [
            it
            for place, (_, ids) in enumerate(kept)
            for it in _windows(place, ids, predictor.context, words.bos, overlap)
        ]
        nats = [np.zeros(len(ids)) for _, ids in kept]
        before = [np.zeros(len(ids), dtype=np.int64) for _, ids in kept]
        filled = [0] * len(kept)
        for window, losses in zip(windows, nats_of(predictor, windows), strict=True):
            fresh = losses[window.counted :]
            place, start = window.document, filled[window.document]
            nats[place][start : start + len(fresh)] = fresh
            before[place][start : start + len(fresh)] = np.arange(window.counted, len(losses))
            filled[place] += len(fresh)
        for (text, ids), own, past in zip(kept, nats, before, strict=True):
            yield Expected(own, past, len(text.encode()), words.unk not in ids)


def _windows(place: int, ids: list[int], size: int, bos: int, overlap: float) -> Iterator[_Window]:
    step, done = max(1, size - int(size * overlap)), 0
    for start in range(0, len(ids), step):
        targets = ids[start : start + size]
        yield _Window(place, [bos, *targets[:-1]], targets, done - start)
        done = start + len(targets)
        if done == len(ids):
            return


@torch.no_grad()
def nats_of(predictor: Predictor, windows: Sequence[_Window]) -> list[Floats]:
    """-log P of every target of each window."""
    found: list[Floats] = [np.zeros(0)] * len(windows)
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
            found[place] = row[: len(windows[place].inputs)]
    return found


def language_scores(predictor: Predictor, texts: Iterable[str], on_progress: Callable[[int], None]) -> Scores:
    """Loss, perplexity, bits for each byte."""
    found = []
    for number, document in enumerate(expect(predictor, texts), 1):
        found.append((document.nats.sum(), len(document.nats), document.size, document.spelt))
        on_progress(number)
    if not found:
        raise DataError("there is no text to be expected: every document is empty.")
    nats, tokens, sizes = (np.array(column, dtype=np.float64) for column in list(zip(*found, strict=True))[:3])
    spelt = all(row[3] for row in found)
    seen = f"windows of {predictor.context} tokens that overlap by half, ends of documents counted"
    return Likelihood(nats, tokens, "documents", sizes if spelt else None).scores(seen)


def position_scores(predictor: Predictor, texts: Iterable[str]) -> Scores:
    """Loss by the place in a window that begins without a past: what cutting a text into pieces costs."""
    documents = [(it.nats, it.before) for it in expect(predictor, texts, overlap=0.0)]
    found: dict[str, Score] = {}
    for low in _doubling(predictor.context):
        high = min(2 * low, predictor.context + 1)
        inside = [(before + 1 >= low) & (before + 1 < high) for _, before in documents]
        sums, counts = ([float(each[mine].sum()) for (each, _), mine in zip(documents, inside, strict=True)],
                        [int(mine.sum()) for mine in inside])  # fmt: skip
        if not any(counts):
            break
        kept = [place for place, count in enumerate(counts) if count]
        loss = ratio([sums[place] for place in kept], [counts[place] for place in kept])
        name = f"loss_at_position_{low}"
        found[name] = Score.of(
            loss, len(kept), "documents", f"places {low} to {high - 1} of a window", f"{sum(counts):,} tokens"
        )
    return found


def context_scores(predictor: Predictor, texts: Iterable[str]) -> Scores:
    """Loss of the same words with a past of 1, 2, 4, ... tokens, and from which on more of it helps no more."""
    longest, bos = predictor.context - 1, predictor.tokenizer.words.bos
    probes = _probes(predictor, texts, longest)
    found: dict[str, Score] = {}
    losses: dict[int, float] = {}
    for size in [size for size in _doubling(longest) if size < longest] + [longest]:
        windows = [
            _Window(0, [bos, *past[longest - size :]], [*past[longest - size :], word], 0) for past, word in probes
        ]
        last = [float(row[-1]) for row in nats_of(predictor, windows)]
        loss = ratio(last, np.ones(len(last)))
        losses[size] = loss.value
        found[f"loss_with_context_{size}"] = Score.of(loss, len(last), "words", f"a past of {size} tokens")
    enough = next(size for size, loss in losses.items() if loss <= NEAR * losses[longest])
    said = f"tokens of past from which on the loss is within {NEAR - 1:.0%} of that with {longest}"
    return {**found, "context_used": Score(float(enough), None, None, said)}


def _probes(predictor: Predictor, texts: Iterable[str], longest: int) -> list[tuple[list[int], int]]:
    """Words that have so much before them, drawn evenly: at equal distances they might all be of one kind."""
    found: list[tuple[list[int], int]] = []
    for text in texts:
        ids = predictor.tokenizer.encode(text)
        found += [(ids[place - longest : place], ids[place]) for place in range(longest, len(ids))]
        if len(found) >= 64 * PROBES:
            break
    if not found:
        raise DataError(f"no document has more than {longest} tokens, so that its past could be cut. Give longer ones.")
    drawn = np.random.default_rng(0).permutation(len(found))[:PROBES]
    return [found[place] for place in drawn]


def _doubling(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length()) if 1 << power <= most]
