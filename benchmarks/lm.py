"""Training a GPT-2 shape to predict the next token, against transformers' GPT2LMHeadModel in a plain loop.

Ours is the trainer as it runs, its data included; theirs reads rows that are ready. Both are documents end to end, cut
into full rows. With the same weights they must score the same words alike. Tuned (on a GPU alone): compiled, and with
a fused optimizer.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import transformers
from tests.equality.copying import gpt2

from anyformer.training import Trainer
from benchmarks import corpus, trainers
from benchmarks.harness import Bench, Size, compare
from benchmarks.rows import Row
from benchmarks.runner import single

SIZES: dict[Size, trainers.Size] = {
    "gpu": {"layers": 12, "dim": 768, "heads": 12, "vocab": 50304, "length": 1024, "tokens": 65536},
    "cpu": {"layers": 6, "dim": 256, "heads": 4, "vocab": 8192, "length": 256, "tokens": 2048},
    "tiny": {"layers": 2, "dim": 32, "heads": 2, "vocab": 512, "length": 32, "tokens": 128},
}


def rows(bench: Bench) -> Iterator[Row]:
    size = SIZES[bench.size]
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(bench, Path(folder), size)
        loop = partial(trainers.theirs, batches=full_rows(trainer, size), trainer=trainer)
        peers = {"transformers": partial(loop, partial(peer, size), tuned=False)}
        if bench.device.type == "cuda":
            peers["transformers, tuned"] = partial(loop, partial(peer, size), tuned=True)
        case = trainers.case_of(bench, "lm", size, trainer, peers)
        check = partial(trainers.same_scores, trainer, peer(size), partial(gpt2, layers=size["layers"]))
        yield from compare(bench, replace(case, check=check))


def trainer_of(bench: Bench, folder: Path, size: trainers.Size, *more: str) -> Trainer:
    target, told = recipe(bench, folder, size)
    return trainers.trainer_of(target, [*told, *more], corpus.prepared_in(bench, folder), bench.device)


def recipe(bench: Bench, folder: Path, size: trainers.Size) -> tuple[str, list[str]]:
    """As `anyformer train` is told."""
    target, told = corpus.long_texts(bench, folder)
    return target, ["model.preset=gpt2", "data.packing=rows", *trainers.overrides(size, bench.device), *told]


def peer(size: trainers.Size) -> transformers.GPT2LMHeadModel:
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=size["vocab"], n_positions=size["length"], n_embd=size["dim"], n_layer=size["layers"],
        n_head=size["heads"], resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    ))  # fmt: skip


def full_rows(trainer: Trainer, size: trainers.Size) -> list[trainers.Inputs]:
    """Documents one after the other, cut into rows: what a plain loop is usually given."""
    stream = trainer.prepared.split("train").sides["tokens"].tokens.array[: 8 * size["tokens"]]
    whole = len(stream) // size["tokens"] * size["tokens"]
    cut = torch.from_numpy(stream[:whole].astype(int)).view(-1, size["tokens"] // size["length"], size["length"])
    return [{"input_ids": batch, "labels": batch} for batch in cut]


if __name__ == "__main__":
    single(__doc__, rows)
