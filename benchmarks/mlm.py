"""Training BERT-base on masked words over texts of real lengths, against transformers' BertForMaskedLM.

Counted are tokens of text a second, padding not. Ours packs texts into full rows and scores the masked words alone;
theirs is given padded rows in random order, always as many. Tuned: rows of like lengths together, as many as have as
many tokens as our updates, and, on a GPU, compiled and with a fused optimizer.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from tests.equality.copying import bert
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from anyformer.data.batching.packings.pack import Pieces
from anyformer.training import Trainer
from benchmarks import corpus, trainers
from benchmarks.harness import Bench, Size, compare, tell
from benchmarks.rows import Row
from benchmarks.runner import single

SIZES: dict[Size, trainers.Size] = {
    "gpu": {"layers": 12, "dim": 768, "heads": 12, "vocab": 30528, "length": 512, "tokens": 65536},
    "cpu": {"layers": 4, "dim": 256, "heads": 4, "vocab": 8192, "length": 256, "tokens": 4096},
    "tiny": {"layers": 2, "dim": 32, "heads": 2, "vocab": 512, "length": 32, "tokens": 128},
}
SHARE, IGNORED, BATCHES, SORTED = 0.15, -100, 8, 50
"""Sorted: so many batches are sorted by length together, as transformers' own trainer does it."""
EVEN = 8


def rows(bench: Bench) -> Iterator[Row]:
    size = SIZES[bench.size]
    with tempfile.TemporaryDirectory() as folder:
        tell("mlm", "data")
        cache = corpus.prepared_in(bench, Path(folder))
        trainer = trainers.trainer_of(*recipe(bench, Path(folder), size), cache, bench.device)
        make = partial(peer, size)
        texts, compiles = texts_of(trainer, size), bench.device.type == "cuda"
        groups = by_rows(texts, size)[:BATCHES], by_tokens(sorted(texts, key=len), size)
        mixed, alike = (padded(some, trainer.prepared.words.mask) for some in groups)
        case = trainers.case_of(bench, "mlm", size, trainer, {
            "transformers": partial(trainers.theirs, make, mixed, trainer, tuned=False),
            "transformers, tuned": partial(trainers.theirs, make, alike, trainer, tuned=compiles),
        })  # fmt: skip
        silent = 6 * (1 - SHARE) * size["tokens"] * size["dim"] * size["vocab"]  # words that nobody asks for
        check = partial(trainers.same_scores, trainer, peer(size), partial(bert, layers=size["layers"]))
        yield from compare(bench, replace(case, check=check, flops=case.flops - silent, shapes=len(alike)))


def recipe(bench: Bench, folder: Path, size: trainers.Size) -> tuple[str, list[str]]:
    """As `anyformer train` is told."""
    target, more = corpus.real_texts(bench, folder)
    told = ["model.preset=bert-base", "objective.kind=masked_words", *trainers.overrides(size, bench.device), *more]
    return target, told


def peer(size: trainers.Size) -> transformers.BertForMaskedLM:
    torch.manual_seed(0)
    return transformers.BertForMaskedLM(transformers.BertConfig(
        vocab_size=size["vocab"], hidden_size=size["dim"], num_hidden_layers=size["layers"],
        num_attention_heads=size["heads"], intermediate_size=4 * size["dim"], max_position_embeddings=size["length"],
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    ))  # fmt: skip


def texts_of(trainer: Trainer, size: trainers.Size) -> list[Tensor]:
    """Texts for as many batches as are sorted together, drawn from all."""
    side = Pieces.of(trainer.prepared.split("train").sides["tokens"], size["length"], key=None)
    chosen = torch.randperm(len(side))[: SORTED * size["tokens"] // size["length"]].numpy()
    places, tokens = zip(side.starts(chosen), side.lengths(chosen), strict=True), side.tokens.array
    return [torch.from_numpy(tokens[start : start + length].astype(int)) for start, length in places]


def by_rows(texts: list[Tensor], size: trainers.Size) -> list[list[Tensor]]:
    """As many texts at a time as full rows would fit."""
    height = size["tokens"] // size["length"]
    return [texts[start : start + height] for start in range(0, len(texts), height)]


def by_tokens(texts: list[Tensor], size: trainers.Size) -> list[list[Tensor]]:
    """As many texts at a time as fit with their padding; the longest stand last."""
    found: list[list[Tensor]] = [[]]
    for text in texts:
        if (len(found[-1]) + 1) * len(text) > size["tokens"]:
            found.append([])
        found[-1].append(text)
    return found


def padded(groups: list[list[Tensor]], mask: int) -> list[trainers.Inputs]:
    """Rows filled up to the longest of their batch, and to an even width, for which a compiler makes one kernel and not
    eight; batches in random order."""
    found: list[trainers.Inputs] = []
    for group in groups:
        spare = -max(map(len, group)) % EVEN
        ids, there = (
            F.pad(pad_sequence(each, batch_first=True), (0, spare))
            for each in (group, [torch.ones_like(text) for text in group])
        )
        chosen = (torch.rand(ids.shape) < SHARE) & there.bool()
        labels, inputs = ids.where(chosen, IGNORED), ids.masked_fill(chosen, mask)
        found.append({"input_ids": inputs, "attention_mask": there, "labels": labels})
    return [found[at] for at in torch.randperm(len(found)).tolist()]


if __name__ == "__main__":
    single(__doc__, rows)
