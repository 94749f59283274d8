"""Training as it runs: `python -m benchmarks.training DATA [key=value ...]`

Steps of a 124M decoder from a memory-mapped file: tokens a second, in the loop and with a wait after every update; the
share of the time in which the device waited for data; and the peak of memory beside what the cost card says of it.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median

import torch

from anyformer.training import Trainer
from anyformer.training.loop.budget import estimate
from benchmarks.trainers import trainer_of

SHAPE = ("model.preset=gpt2", "data.context=1024", "train.batch_tokens=65536", "data.tokenizer.size=8192")
VOCABULARY = "model.vocab=50304"
WARM, TURNS, IN_A_ROW = 10, 3, 8


def measure(trainer: Trainer) -> dict[str, float]:
    """Times every step, and the wait for its batch; the first ones compile and do not count."""
    waits, spans, tokens = [], [], 0
    feed = iter(trainer.feed())
    for number in range(WARM + TURNS * IN_A_ROW):
        began = time.perf_counter()
        ready = next(feed)
        fetched = time.perf_counter()
        step = trainer.update(ready)
        _wait(trainer)
        if number >= WARM:
            waits.append(fetched - began)
            spans.append(time.perf_counter() - began)
            tokens += ready.tokens
    return {
        "tokens_per_s": tokens / sum(spans),
        "step_ms": 1000 * median(spans),
        "waiting_share": sum(waits) / sum(spans),
        "loss": step.loss,
        "peak_bytes": step.peak_bytes or 0,
    }


def in_the_loop(trainer: Trainer) -> dict[str, float]:
    """Milliseconds of a step of the training loop, several steps in a row."""
    steps, times = trainer.steps(), []
    next(steps)
    for _ in range(TURNS):
        next(steps)
        _wait(trainer)
        began = time.perf_counter()
        for _ in range(IN_A_ROW):
            next(steps)
        _wait(trainer)
        times.append(1000 * (time.perf_counter() - began) / IN_A_ROW)
    return {"loop_ms": median(times)}


def _wait(trainer: Trainer) -> None:
    if trainer.world.device.type == "cuda":
        torch.cuda.synchronize()


def predicted(trainer: Trainer) -> float:
    """Bytes by the cost card: weights, gradients, moments, and what the backward pass keeps."""
    context = trainer.prepared.context
    tokens = trainer.progress.micro_batch or trainer.recipe.train.batch_tokens
    fixed, row = estimate(trainer.recipe.model, context, trainer.precision)
    return fixed + tokens // context * row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/anyformer/data"))
    parser.add_argument("more", nargs="*", help="key=value, as for `anyformer train`")
    arguments = parser.parse_intermixed_args()
    told = [*SHAPE, VOCABULARY, *arguments.more, "train.steps=100000"]
    trainer = trainer_of(arguments.data, told, arguments.cache, torch.device(arguments.device))
    found, guess = {**measure(trainer), **in_the_loop(trainer)}, predicted(trainer)
    print(json.dumps({**found, "predicted_bytes": guess, "peak_to_predicted": found["peak_bytes"] / guess}, indent=1))


if __name__ == "__main__":
    main()
