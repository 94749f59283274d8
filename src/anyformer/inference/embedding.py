"""A vector for each text, pooled by the head; without a pool, the mean of an encoder or the last token of a decoder.

Vectors that were learned by their angles (contrastive) have length 1.

How texts are grouped into batches: next to no padding, in as few passes as that allows.

Texts sorted by length are cut into stretches; every text of a stretch is as long as its longest. The cheapest cuts by

cost = sum over stretches of rows x longest + start x passes

are found exactly, from the shortest length to the longest (dynamic programming over the lengths that there are).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from anyformer.core import Frame
from anyformer.errors import SpecError
from anyformer.inference.predictor import Predictor
from anyformer.inference.record_batches import ELSEWHERE, ON_CPU, Ragged, grouped

OnProgress: TypeAlias = Callable[[int], None]
"""Called with the number of texts that were read, or sent to the device."""
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
    cut, pending = 0, list[PendingVectors]()
    for start in range(0, len(texts), WINDOW):
        rows, shortened = _rows(predictor, texts[start : start + WINDOW])
        cut += shortened
        pending.append(_send(predictor, rows, vectors[start : start + WINDOW], _counting_from(start, on_progress)))
        if len(pending) > 1:  # while the device reads this window, the one before is stored and the next tokenised
            pending.pop(0).store()
    for last in pending:
        last.store()
    return vectors, cut


def _counting_from(start: int, on_progress: OnProgress) -> OnProgress:
    return lambda done: on_progress(start + done)


class PendingVectors(NamedTuple):
    """Vectors that a device is computing."""

    vectors: Tensor
    """On the host, filled when `arrived` has happened."""
    order: list[int]
    destination: NDArray[np.float32]
    arrived: torch.cuda.Event | None
    """None if they were computed on the host."""

    def store(self) -> None:
        """Waits for the vectors and copies them to their destination."""
        if self.arrived is not None:
            self.arrived.synchronize()
        self.destination[self.order] = self.vectors.numpy()


def _send(
    predictor: Predictor, rows: Sequence[list[int]], destination: NDArray[np.float32], on_progress: OnProgress
) -> PendingVectors:
    device, order = predictor.device, list[int]()
    ragged, ahead = Ragged.of(rows), device.type == "cuda"
    vectors = torch.empty(destination.shape, pin_memory=ahead)
    for group in grouped(ragged.lengths, ON_CPU if device.type == "cpu" else ELSEWHERE):
        part = slice(len(order), len(order) + len(group))
        vectors[part].copy_(_vectors(predictor, *ragged.padded(group, device)).float(), non_blocking=ahead)
        order += group
        on_progress(len(order))
    arrived = torch.cuda.current_stream(device).record_event() if ahead else None
    return PendingVectors(vectors, order, destination, arrived)


def _rows(predictor: Predictor, texts: Sequence[str]) -> tuple[list[list[int]], int]:
    """Texts with the special tokens of training, and the number of texts that were cut."""
    longest = predictor.context - 2 if predictor.alone else predictor.context - 1
    encoded, rows, cut = predictor.tokenizer.encode_batch(list(texts)), [], 0
    for text, ids in zip(texts, encoded, strict=True):
        if not ids:
            raise _empty(text)
        cut += len(ids) > longest
        rows.append(predictor.lay_out(ids[:longest]))
    return rows, cut


def _empty(text: str) -> SpecError:
    return SpecError(f"text: {text!r} is empty. There is nothing to make a vector of.")


def _vectors(predictor: Predictor, tokens: Tensor, lengths: Tensor, frame: Frame) -> Tensor:
    model = predictor.model
    if model.needs_source:
        return _mean(model.encode(tokens, frame).x, frame)
    out = model(tokens, frame, logits=False)
    frame = out.frame or frame
    if (pooled := model.output_head().pooled(out.y, frame)) is not None:
        return F.normalize(pooled.float(), dim=-1) if predictor.objective.unit_vectors else pooled
    if predictor.spec.output_stack.causal:
        return out.y.take_along_dim((lengths - 1)[:, None, None], dim=1)[:, 0]
    return _mean(out.y, frame)


def _mean(h: Tensor, frame: Frame) -> Tensor:
    if frame.valid is None:
        return h.mean(1)
    valid = frame.valid[..., None].to(h)
    return (h * valid).sum(1) / valid.sum(1).clamp(min=1)


def normalised(vectors: Any) -> NDArray[np.float32]:
    """The vectors, scaled to length 1."""
    rows = np.asarray(vectors, dtype=np.float32)
    lengths: NDArray[np.float32] = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(lengths, 1e-12), dtype=np.float32)
