"""A vector for each text, pooled as the model was trained to; by the mean of an encoder, the last token of a decoder.

Vectors that were learned by their angles (contrastive) have length 1.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from anyformer.core import Frame
from anyformer.errors import SpecError
from anyformer.evaluation.grouping import ELSEWHERE, ON_CPU, grouped
from anyformer.evaluation.trained import Trained, aspects, embeds_pairs
from anyformer.models.encoder_decoder import EncoderDecoderModel
from anyformer.objectives.classify import Classify
from anyformer.objectives.heads import head_of, reader, speaker
from anyformer.objectives.regress import Regress
from anyformer.parts.heads.classifier import ClassifierHead
from anyformer.parts.heads.pooled import PooledHead


@torch.no_grad()
def embed(
    trained: Trained, texts: Sequence[str], tell: Callable[[int], None] = lambda done: None
) -> tuple[NDArray[np.float32], int]:
    """[n d], and of how many texts the end was not read."""
    rows, cut = _rows(trained, texts)
    found: NDArray[np.float32] = np.zeros((len(rows), width(trained)), dtype=np.float32)
    trained.model.eval()
    done, price = 0, ON_CPU if trained.device.type == "cpu" else ELSEWHERE
    for group in grouped(list(map(len, rows)), price):
        found[group] = _vectors(trained, [rows[row] for row in group]).float().cpu().numpy()
        done += len(group)
        tell(done)
    return found, cut


def width(trained: Trained) -> int:
    """Numbers of a vector."""
    return trained.spec.encoder.dim if _pair_model(trained) else speaker(trained.spec).dim  # type: ignore[attr-defined]


def _rows(trained: Trained, texts: Sequence[str]) -> tuple[list[list[int]], int]:
    """Texts with the special tokens that stood around them in training."""
    words = trained.tokenizer.words
    objective, _ = aspects(trained)[0]
    longest = trained.context - 2 if trained.alone else trained.context - 1
    encoded, made, cut = trained.tokenizer.encode_batch(list(texts)), [], 0
    for text, ids in zip(texts, encoded, strict=True):
        if not ids:
            raise SpecError(f"text: {text!r} is empty. There is nothing to make a vector of.")
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


def _vectors(trained: Trained, rows: Sequence[list[int]]) -> Tensor:
    longest = max(map(len, rows))
    tokens = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=trained.device)
    lengths = torch.tensor([len(row) for row in rows], device=trained.device)
    even = min(map(len, rows)) == longest
    frame = Frame(valid=None if even else torch.arange(longest, device=trained.device) < lengths[:, None])
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


def _pair_model(trained: Trained) -> bool:
    return isinstance(trained.model, EncoderDecoderModel)


def normalised(vectors: Any) -> NDArray[np.float32]:
    """Rows of length 1."""
    found = np.asarray(vectors, dtype=np.float32)
    lengths: NDArray[np.float32] = np.linalg.norm(found, axis=1, keepdims=True)
    return np.asarray(found / np.maximum(lengths, 1e-12), dtype=np.float32)
