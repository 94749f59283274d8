"""Tokens a second of the loader against those of a 10M-parameter model: `python -m benchmarks.loader`.

Full rows of made-up documents of very different lengths, no workers. The model's step is forward, loss and backward
on the same batches; what an optimiser adds would only help the loader. The best round of each counts.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F

from anyformer.core import Model, ModelSpec, decode
from anyformer.data.batching.batch import Batch
from anyformer.data.preparation.pipeline import DataSpec, prepare
from anyformer.data.preparation.shards import Prepared
from anyformer.data.record import Record, SourceSpec
from anyformer.data.tokenizers.byte import Byte
from anyformer.training.loop.feed import Loader


@dataclass(frozen=True, kw_only=True)
class MadeUp(SourceSpec, kind="benchmark_made_up"):
    """Documents of 20 to 5000 letters."""

    count: int = 4000

    def records(self) -> Iterator[Record]:
        rng = random.Random(0)
        for place in range(self.count):
            length = int(20 * 250 ** rng.random())
            yield Record("".join(rng.choices("etaoin shrdlu", k=length)), where=f"made up: {place}")

    def fingerprint(self) -> str:
        return str(self.count)


def model_of(prepared: Prepared) -> Model:
    """A decoder of about 10M parameters."""
    layer = {"branches": [{"part": {"kind": "attention", "heads": 6}}, {"part": {"kind": "mlp"}}]}
    shape = {
        "kind": "decoder",
        "vocab": prepared.words.size,
        "dim": 384,
        "max_len": prepared.context,
        "position": {"kind": "learned"},
        "stack": {"depth": 6, "blocks": {"layer": layer}},
    }
    return decode(ModelSpec, shape).build(seed=0)


def train_step(model: Model, batch: Batch) -> None:
    """Forward, loss and backward; where a document begins does not change the work."""
    logits = model(batch.tokens, batch.frame).y
    F.cross_entropy(logits[:, :-1].flatten(0, 1), batch.tokens[:, 1:].flatten()).backward()


def loader_speed(loader: Loader, batches: int) -> float:
    """Tokens a second that are not padding."""
    start = time.perf_counter()
    tokens = sum(int(delivery.batch.counted.sum()) for delivery in islice(loader, batches))
    return tokens / (time.perf_counter() - start)


def model_speed(model: Model, batch: Batch) -> float:
    start = time.perf_counter()
    train_step(model, batch)
    return int(batch.counted.sum()) / (time.perf_counter() - start)


def check(prepared: Prepared, loader: Loader) -> None:
    """An epoch has every token once."""
    tokens = sum(int(delivery.batch.counted.sum()) for delivery in loader)
    assert tokens == prepared.counts["train"]["tokens"], "the loader lost or doubled tokens"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, default=512, help="tokens of a row")
    parser.add_argument("--packing", choices=["pack", "rows"], default="pack")
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many counts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spec = DataSpec(source=MadeUp(), tokenizer=Byte(), context=options.context, packing=options.packing)
        prepared = prepare(spec, Path(folder) / "prepared")
        loader = Loader(prepared=prepared, batch_tokens=options.batch_tokens, epochs=1)
        check(prepared, loader)
        model, batch = model_of(prepared), next(iter(loader)).batch
        train_step(model, batch)
        data = max(loader_speed(loader, 200) for _ in range(options.rounds))
        learning = max(model_speed(model, batch) for _ in range(options.rounds))
    found = {"loader_tokens_s": round(data), "model_tokens_s": round(learning), "ratio": round(data / learning, 1)}
    size = {"params": sum(parameter.numel() for parameter in model.parameters()), "threads": torch.get_num_threads()}
    print(json.dumps({**vars(options), "torch": torch.__version__, **size, **found}))


if __name__ == "__main__":
    main()
