"""Training a Transformer-base to translate sentences of real lengths, against transformers' MarianMTModel.

Ours packs pairs into rows. Theirs, which cannot tell them apart in a row, is given a row for each, in random order, as
many at a time as fit into batches of as many places on average. Tuned: our loader's batches of like lengths, and on a
GPU compiled and with a fused optimizer. Counted are tokens of text of both sides, neither padding nor marks. With the
same weights they must score the same words alike.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from tests.equality.copying import copy
from tests.generation import peers
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from anyformer.core import Frame
from anyformer.data.batching.batch import Batch
from anyformer.data.preparation.pipeline import prepared_for
from anyformer.data.preparation.shards import Prepared
from anyformer.training import Trainer
from anyformer.training.loop.feed import Feed
from anyformer.training.recipes.resolve import data_of, draft
from benchmarks import corpus, trainers
from benchmarks.harness import Bench, Size, compare, tell
from benchmarks.rows import Row
from benchmarks.runner import single
from benchmarks.translation import marian

SIZES: dict[Size, trainers.Size] = {
    "gpu": {"layers": 6, "dim": 512, "heads": 8, "vocab": 8192, "length": 128, "tokens": 32768},
    "cpu": {"layers": 2, "dim": 256, "heads": 4, "vocab": 4096, "length": 128, "tokens": 2048},
    "tiny": {"layers": 1, "dim": 32, "heads": 2, "vocab": 512, "length": 32, "tokens": 128},
}
IGNORED, BATCHES, MARKS = -100, 16, 2
"""Marks: a pair has one behind its source and one behind its target, which are no text."""


def rows(bench: Bench) -> Iterator[Row]:
    size = SIZES[bench.size]
    with tempfile.TemporaryDirectory() as folder:
        tell("seq2seq", "data")
        cache = corpus.prepared_in(bench, Path(folder))
        trainer = trainers.trainer_of(*recipe(bench, Path(folder), size), cache, bench.device)
        prepared = prepared_for(data_of(draft(*apart(bench, Path(folder), size))), cache)
        alike = [inputs(ready.batch) for ready in islice(feed_of(trainer, prepared), BATCHES)]
        loop, compiles = partial(trainers.theirs, trainer=trainer, marks=MARKS), bench.device.type == "cuda"
        make = partial(marian, trainer)
        case = trainers.case_of(bench, "seq2seq", size, trainer, {
            "transformers": partial(loop, make, mixed(alike), tuned=False),
            "transformers, tuned": partial(loop, make, alike, tuned=compiles),
        })  # fmt: skip
        check = partial(same_scores, trainer, marian(trainer), alike[0], size)
        # of the tokens of an update one half is read and the other written
        yield from compare(bench, replace(case, check=check, flops=case.flops / 2, shapes=BATCHES))


def recipe(bench: Bench, folder: Path, size: trainers.Size) -> tuple[str, list[str]]:
    """As `anyformer train` is told."""
    return _told(bench, size, "pack")


def apart(bench: Bench, folder: Path, size: trainers.Size) -> tuple[str, list[str]]:
    """The same with a row for each pair, for theirs."""
    return _told(bench, size, "bucket")


def _told(bench: Bench, size: trainers.Size, packing: str) -> tuple[str, list[str]]:
    target, more = corpus.pairs(bench)
    return target, [*halves(size), *trainers.endless(size, bench.device), f"data.packing={packing}", *more]


def feed_of(trainer: Trainer, prepared: Prepared) -> Feed:
    """The trainer's, of data that were prepared in another way."""
    feed = trainer.feed()
    return replace(feed, loader=replace(feed.loader, prepared=prepared))


def halves(size: trainers.Size) -> list[str]:
    """The preset in this size, and what makes Marian's the same task."""
    told = ["objective.kind=seq2seq", "objective.smoothing=0.0", "model.decoder.init.kind=normal"]
    for side, looks in {"encoder": ("0.part",), "decoder": ("0.part", "1.part.part")}.items():
        half = f"model.{side}"
        told += [f"{half}.dim={size['dim']}", f"{half}.stack.depth={size['layers']}", f"{half}.position.layout=halves"]
        told += [f"{half}.stack.blocks.layer.branches.{look}.heads={size['heads']}" for look in looks]
    return told


def inputs(batch: Batch) -> trainers.Inputs:
    """Pairs with a row each, as Marian wants them."""
    assert batch.source is not None and batch.targets is not None and batch.weight is not None
    return {
        "input_ids": batch.source.tokens, "attention_mask": batch.source.counted.long(),
        "decoder_input_ids": batch.tokens, "decoder_attention_mask": batch.counted.long(),
        "labels": batch.targets.masked_fill(batch.weight == 0, IGNORED),
    }  # fmt: skip


def mixed(batches: list[trainers.Inputs]) -> list[trainers.Inputs]:
    """The same pairs in random order, all batches with as many."""
    pairs = [dict(zip(given, values, strict=True)) for given in batches for values in zip(*given.values(), strict=True)]
    order = torch.randperm(len(pairs)).tolist()
    height = len(pairs) // len(batches)
    return [_stacked([pairs[at] for at in order[n * height : (n + 1) * height]]) for n in range(len(batches))]


def _stacked(pairs: list[trainers.Inputs]) -> trainers.Inputs:
    """Filled up to the longest of each side, and not further."""
    found = {}
    for name in pairs[0]:
        side = "attention_mask" if name in ("input_ids", "attention_mask") else "decoder_attention_mask"
        kept = [pair[name][: int(pair[side].sum())] for pair in pairs]
        found[name] = pad_sequence(kept, batch_first=True, padding_value=IGNORED if name == "labels" else 0)
    return found


@torch.no_grad()
def same_scores(trainer: Trainer, theirs: nn.Module, given: trainers.Inputs, size: trainers.Size) -> bool:
    """The same weights, the same pairs: the same scores of every next word."""
    device = trainer.world.device
    ours, theirs = trainer.recipe.model.build(device=str(device)).eval(), theirs.eval()
    peers.LAYERS = size["layers"]
    copy(theirs, ours, lambda read: {name: it for name, it in peers.bart(read).items() if "position" not in name})
    some = {name: value[:2].to(device) for name, value in given.items() if name != "labels"}
    read, written = (some[name].bool() for name in ("attention_mask", "decoder_attention_mask"))
    memory = ours.encode(some["input_ids"], Frame(valid=read))
    found = ours(some["decoder_input_ids"], Frame(valid=written, memory=memory)).y
    return torch.allclose(found[written], theirs(**some).logits[written], atol=1e-3, rtol=1e-3)


if __name__ == "__main__":
    single(__doc__, rows)
