"""A vector for each text, pooled as the model was trained to; by the mean of an encoder, the last token of a decoder.

Vectors that were learned by their angles (contrastive) have length 1.
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
from anyformer.inference.grouping import ELSEWHERE, ON_CPU, grouped
from anyformer.inference.predictor import Predictor, aspects, embeds_pairs
from anyformer.inference.ragged import Ragged
from anyformer.models.encoder_decoder import EncoderDecoderModel
from anyformer.objectives.classify import Classify
from anyformer.objectives.heads import head_of, reader, speaker
from anyformer.objectives.regress import Regress
from anyformer.parts.heads.classifier import ClassifierHead
from anyformer.parts.heads.pooled import PooledHead

Tell: TypeAlias = Callable[[int], None]
"""Hears how many texts were read, or asked for."""
WINDOW = 4096
"""Texts that are tokenised and sorted by length together."""


@torch.no_grad()
def embed(trained: Predictor, texts: Sequence[str], tell: Tell = lambda done: None) -> tuple[NDArray[np.float32], int]:
    """[n d], and of how many texts the end was not read."""
    if not all(texts):  # before others are read for nothing; what has no token is told at its turn
        raise _empty("")
    found: NDArray[np.float32] = np.empty((len(texts), width(trained)), dtype=np.float32)
    trained.model.eval()
    cut, asked = 0, list[PendingVectors]()
    for start in range(0, len(texts), WINDOW):
        rows, shortened = _rows(trained, texts[start : start + WINDOW])
        cut += shortened
        asked.append(_ask(trained, rows, found[start : start + WINDOW], _counting_from(start, tell)))
        if len(asked) > 1:  # while the device reads these, those before are put in place and the next ones tokenised
            asked.pop(0).settle()
    for last in asked:
        last.settle()
    return found, cut


def _counting_from(start: int, tell: Tell) -> Tell:
    return lambda done: tell(start + done)


class PendingVectors(NamedTuple):
    """Vectors that a device was asked for."""

    vectors: Tensor
    """On the host, once they are there."""
    order: list[int]
    place: NDArray[np.float32]
    arrived: torch.cuda.Event | None
    """None: they are there."""

    def settle(self) -> None:
        """Puts them in their place."""
        if self.arrived is not None:
            self.arrived.synchronize()
        self.place[self.order] = self.vectors.numpy()


def _ask(trained: Predictor, rows: Sequence[list[int]], place: NDArray[np.float32], tell: Tell) -> PendingVectors:
    device, order = trained.device, list[int]()
    ragged, ahead = Ragged.of(rows), device.type == "cuda"
    vectors = torch.empty(place.shape, pin_memory=ahead)
    for group in grouped(ragged.lengths, ON_CPU if device.type == "cpu" else ELSEWHERE):
        part = slice(len(order), len(order) + len(group))
        vectors[part].copy_(_vectors(trained, *ragged.padded(group, device)).float(), non_blocking=ahead)
        order += group
        tell(len(order))
    return PendingVectors(vectors, order, place, torch.cuda.current_stream(device).record_event() if ahead else None)


def width(trained: Predictor) -> int:
    """Numbers of a vector."""
    return trained.spec.encoder.dim if _pair_model(trained) else speaker(trained.spec).dim  # type: ignore[attr-defined]


def _rows(trained: Predictor, texts: Sequence[str]) -> tuple[list[list[int]], int]:
    """Texts with the special tokens that stood around them in training."""
    words = trained.tokenizer.words
    objective, _ = aspects(trained)[0]
    longest = trained.context - 2 if trained.alone else trained.context - 1
    encoded, made, cut = trained.tokenizer.encode_batch(list(texts)), [], 0
    for text, ids in zip(texts, encoded, strict=True):
        if not ids:
            raise _empty(text)
        cut, ids = cut + (len(ids) > longest), ids[:longest]
        if embeds_pairs(objective):
            made.append(ids)
        elif isinstance(objective, Classify | Regress):
            made.append(objective.layout.one(ids, words).ids)
        elif _pair_model(trained):
            made.append([*ids, words.sep])
        elif speaker(trained.spec).causal:
            made.append([words.bos, *ids])
        else:
            made.append([words.cls, *ids, *([words.sep] if trained.alone else [])])
    return made, cut


def _empty(text: str) -> SpecError:
    return SpecError(f"text: {text!r} is empty. There is nothing to make a vector of.")


def _vectors(trained: Predictor, tokens: Tensor, lengths: Tensor, frame: Frame) -> Tensor:
    model = trained.model
    if _pair_model(trained):
        return _mean(model.encode(tokens, frame).x, frame)
    out = model(tokens, frame, logits=False)
    frame, (objective, view) = out.frame or frame, aspects(trained)[0]
    head = head_of(view)
    if isinstance(head, PooledHead):
        pooled = head(out.y, frame)
        return F.normalize(pooled.float(), dim=-1) if embeds_pairs(objective) else pooled
    if isinstance(head, ClassifierHead):
        return head.pool(out.y, frame)
    if reader(trained.spec, "embed").causal:
        return out.y.take_along_dim((lengths - 1)[:, None, None], dim=1)[:, 0]
    return _mean(out.y, frame)


def _mean(h: Tensor, frame: Frame) -> Tensor:
    if frame.valid is None:
        return h.mean(1)
    there = frame.valid[..., None].to(h)
    return (h * there).sum(1) / there.sum(1).clamp(min=1)


def _pair_model(trained: Predictor) -> bool:
    return isinstance(trained.model, EncoderDecoderModel)


def normalised(vectors: Any) -> NDArray[np.float32]:
    """Rows of length 1."""
    found = np.asarray(vectors, dtype=np.float32)
    lengths: NDArray[np.float32] = np.linalg.norm(found, axis=1, keepdims=True)
    return np.asarray(found / np.maximum(lengths, 1e-12), dtype=np.float32)
