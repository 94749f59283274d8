"""A vector for each text, pooled by the head; without a pool, the mean of an encoder or the last token of a decoder.

Vectors that were learned by their angles (contrastive) have length 1. Texts are grouped by length into batches with
next to no padding, in as few passes as that allows: `grouped`.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from anyformer.core import Frame
from anyformer.errors import SpecError
from anyformer.objectives.objective import Predictor
from anyformer.ops.devices import on_gpu, synchronizer, to_device
from anyformer.parts.pools.last import LastModule
from anyformer.parts.pools.mean import MeanModule

OnProgress: TypeAlias = Callable[[int], None]
"""Called with the number of texts that were read, or sent to the device."""
Integers: TypeAlias = NDArray[np.int64]
WINDOW = 4096
"""Texts that are tokenised and sorted by length together."""


@torch.no_grad()
def embed(
    predictor: Predictor, texts: Sequence[str], on_progress: OnProgress = lambda done: None
) -> tuple[NDArray[np.float32], int]:
    """The vectors [n d], and the number of texts whose end was cut off."""
    if not all(texts):  # before others are read for nothing; a text without tokens is refused when its turn comes
        raise _empty("")
    predictor = predictor.head_views[0]
    vectors: NDArray[np.float32] = np.empty((len(texts), predictor.spec.input_stack.dim), dtype=np.float32)
    predictor.model.eval()
    cut, pending = 0, list[Callable[[], None]]()
    for start in range(0, len(texts), WINDOW):
        rows, shortened = _rows(predictor, texts[start : start + WINDOW])
        cut += shortened
        pending.append(_send(predictor, rows, vectors, start, on_progress))
        if len(pending) > 1:  # while the device reads this window, the one before is stored and the next tokenised
            pending.pop(0)()
    for store in pending:
        store()
    return vectors, cut


def _send(
    predictor: Predictor, rows: Sequence[list[int]], stored: NDArray[np.float32], start: int, on_progress: OnProgress
) -> Callable[[], None]:
    """Starts to compute vectors; the function that is returned waits for them and stores them from `start` on."""
    device, order, ragged = predictor.device, list[int](), Ragged.of(rows)
    vectors = torch.empty(len(rows), stored.shape[1], pin_memory=on_gpu(device))
    for group in grouped(ragged.lengths, ON_CPU if device.type == "cpu" else ELSEWHERE):
        part = slice(len(order), len(order) + len(group))
        computed = _vectors(predictor, *ragged.padded(group, device)).float()
        vectors[part].copy_(computed, non_blocking=on_gpu(device))
        order += group
        on_progress(start + len(order))
    wait = synchronizer(device)

    def store() -> None:
        wait()
        stored[start : start + len(rows)][order] = vectors.numpy()

    return store


def _rows(predictor: Predictor, texts: Sequence[str]) -> tuple[list[list[int]], int]:
    """Texts with the special tokens of training, and the number of texts that were cut."""
    special = len(predictor.lay_out([0])) - 1  # the tokens around a text need room too
    longest = predictor.context - special
    encoded, rows, cut = predictor.tokenizer.encode_batch(list(texts)), [], 0
    for text, ids in zip(texts, encoded, strict=True):
        if not ids:
            raise _empty(text)
        cut += len(ids) > longest
        rows.append(predictor.lay_out(ids[:longest]))
    return rows, cut


def _empty(text: str) -> SpecError:
    return SpecError(f"text: {text!r} is empty. There is nothing to make a vector of.")


def _vectors(predictor: Predictor, tokens: Tensor, frame: Frame) -> Tensor:
    model = predictor.model
    if model.needs_source:
        return MeanModule()(model.encode(tokens, frame).x, frame)
    out = model(tokens, frame, logits=False)
    frame = out.frame or frame
    if (pooled := model.output_head().pooled(out.y, frame)) is not None:
        return F.normalize(pooled.float(), dim=-1) if predictor.objective.unit_vectors else pooled
    pool = LastModule() if predictor.spec.output_stack.causal else MeanModule()
    return pool(out.y, frame)


def normalised(vectors: Any) -> NDArray[np.float32]:
    """The vectors, scaled to length 1."""
    rows = np.asarray(vectors, dtype=np.float32)
    lengths: NDArray[np.float32] = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(lengths, 1e-12), dtype=np.float32)


class Pass(NamedTuple):
    """Size and fixed cost of one pass through a model."""

    tokens: int
    """Most tokens of one pass, padding included."""
    start: int
    """Fixed cost of a pass, in tokens."""


ON_CPU = Pass(tokens=2048, start=32)
"""More tokens leave the cache; below 256 the weights are read for too little work (benchmarks/embeddings.py)."""
ELSEWHERE = Pass(tokens=32768, start=4096)
"""Small passes would leave a GPU waiting for the host. No other sizes were measured there."""


def grouped(lengths: Sequence[int] | Integers, price: Pass) -> Iterator[list[int]]:
    """The indices of the texts of each batch, the shortest first.

    Texts sorted by length are cut into stretches; every text of a stretch is as long as its longest. The cheapest cuts
    by cost = sum over stretches of rows x longest + start x passes are found exactly, by dynamic programming over the
    lengths that there are.
    """
    order = np.argsort(np.asarray(lengths), kind="stable")
    values, first = np.unique(np.asarray(lengths)[order], return_index=True)
    first = np.append(first, len(order))
    best, cut = np.zeros(len(values) + 1), np.zeros(len(values) + 1, dtype=np.int64)
    for stop in range(1, len(values) + 1):
        tokens = (first[stop] - first[:stop]) * values[stop - 1]
        costs = best[:stop] + tokens + price.start * np.ceil(tokens / price.tokens)
        cut[stop] = costs.argmin()
        best[stop] = costs[cut[stop]]
    ends = [len(values)]
    while ends[-1]:
        ends.append(int(cut[ends[-1]]))
    for stop, start in reversed(list(pairwise(ends))):
        places = order[first[start] : first[stop]].tolist()
        rows = max(1, price.tokens // int(values[stop - 1]))
        yield from (places[at : at + rows] for at in range(0, len(places), rows))


class Ragged(NamedTuple):
    """The tokens of all texts, end to end."""

    tokens: Integers
    lengths: Integers
    starts: Integers

    @classmethod
    def of(cls, texts: Sequence[Sequence[int]]) -> "Ragged":
        lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        tokens = np.fromiter(chain.from_iterable(texts), dtype=np.int64, count=int(lengths.sum()))
        return cls(tokens, lengths, lengths.cumsum() - lengths)

    def padded(self, group: Sequence[int], device: torch.device) -> tuple[Tensor, Frame]:
        """Some texts as rows padded with zeros, and a frame that marks the tokens."""
        lengths = self.lengths[group]
        places = np.arange(lengths.max())
        inside = places < lengths[:, None]
        rows = np.where(inside, self.tokens[np.where(inside, self.starts[group][:, None] + places, 0)], 0)
        tokens = to_device(torch.from_numpy(rows), device)
        return tokens, Frame(valid=None if inside.all() else to_device(torch.from_numpy(inside), device))
