"""The likelihood of each word of whole documents: -log P(w_n | <bos> w_<n), the end included.

No document sees another. One that is longer than the context of training is read in windows that overlap by half; each
word counts once, where it has the longer context. With `overlap=0` every window begins without context.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from anyformer.core import Frame
from anyformer.objectives.objective import Predictor
from anyformer.objectives.words import WORDS
from anyformer.statistics.intervals import Floats

TOGETHER, TOKENS = 256, 4096
"""Documents whose windows share batches, and tokens of a batch."""


class DocumentLikelihood(NamedTuple):
    """-log P of the words of one document."""

    nats: Floats
    before: NDArray[np.int64]
    """Number of words before each word in its window."""
    size: int
    """Bytes of its text."""
    spelt: bool
    """False if it contains <unk>, so that its words do not spell the text."""


def document_likelihoods(
    predictor: Predictor, texts: Iterable[str], overlap: float = 0.5
) -> Iterator[DocumentLikelihood]:
    """The likelihood of each document that is not empty."""
    texts, words, size = iter(texts), predictor.tokenizer.words, predictor.context
    step = max(1, size - int(size * overlap))
    while group := list(islice(texts, TOGETHER)):
        encoded = predictor.tokenizer.encode_batch(group)
        documents = [(text, [*ids, words.eos]) for text, ids in zip(group, encoded, strict=True) if ids]
        windows = [
            (place, start)
            for place, (_, ids) in enumerate(documents)
            for start in range(0, max(len(ids) - size, 0) + step, step)
        ]
        rows = window_nats(predictor, [documents[place][1][start : start + size] for place, start in windows])
        nats = [np.zeros(len(ids)) for _, ids in documents]
        before = [np.zeros(len(ids), dtype=np.int64) for _, ids in documents]
        done = [0] * len(documents)
        for (place, start), losses in zip(windows, rows, strict=True):
            fresh = slice(done[place], start + len(losses))  # the words before counted in an earlier window
            nats[place][fresh] = losses[done[place] - start :]
            before[place][fresh] = np.arange(done[place] - start, len(losses))
            done[place] = fresh.stop
        for (text, ids), losses, context in zip(documents, nats, before, strict=True):
            yield DocumentLikelihood(losses, context, len(text.encode()), words.unk not in ids)


@torch.no_grad()
def window_nats(predictor: Predictor, windows: Sequence[list[int]]) -> list[Floats]:
    """-log P of every word of each window, after <bos>."""
    nats: list[Floats] = [np.zeros(0)] * len(windows)
    bos, order = predictor.tokenizer.words.bos, sorted(range(len(windows)), key=lambda place: len(windows[place]))
    predictor.model.eval()
    while order:
        longest = len(windows[order[-1]])
        rows = max(1, TOKENS // longest)
        group, order = order[-rows:], order[:-rows]
        padded = [[bos, *windows[place], *[0] * (longest - len(windows[place]))] for place in group]
        tokens = torch.tensor(padded, device=predictor.device)
        lengths = torch.tensor([len(windows[place]) for place in group], device=predictor.device)
        there = torch.arange(longest, device=predictor.device) < lengths[:, None]
        inputs, targets = tokens[:, :-1].masked_fill(~there, 0), tokens[:, 1:]
        frame = Frame(valid=None if bool(there.all()) else there)
        out = predictor.model(inputs, frame, logits=False)
        logits = predictor.model.output_head().named(WORDS)(out.y, out.frame or frame)
        losses = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)
        for place, row in zip(group, losses.double().cpu().numpy(), strict=True):
            nats[place] = row[: len(windows[place])]
    return nats
