"""What does it cost that the stream between layers is bf16? `python -m benchmarks.stream speeches.jsonl.gz`

A GPT-2 shape of twelve layers in mixed precision, trained with the stream as it is and in single precision, from the
same weights over the same batches. One line of JSON for each run, and one with the mean of the paired differences.
"""

import argparse
import json
from contextlib import nullcontext
from statistics import fmean
from unittest import mock

import torch

from anyformer.training.observers import validate
from benchmarks.trainers import trainer_of

RECIPE = (
    "model.preset=gpt2", "model.dim=384", "model.stack.depth=12", "model.max_len=256", "model.vocab=8192",
    "model.stack.blocks.layer.branches.0.part.heads=4", "data.context=256", "data.tokenizer.kind=bpe",
    "data.tokenizer.size=8192", "data.packing=rows", "train.steps=300", "train.batch_tokens=32768",
    "train.compile=false", "optimizer.lr=1e-3", "schedule.warmup=0.1",
)  # fmt: skip
VALID = 20


def loss(target: str, overrides: list[str], device: torch.device, *, wide: bool) -> float:
    """On the validation texts, at the end."""
    stream = mock.patch("anyformer.models.single.as_stream", lambda x: x) if wide else nullcontext()
    with stream:
        trainer = trainer_of(target, [*RECIPE, *overrides], None, device)
        for _ in trainer.steps():
            pass
        found = validate(trainer, VALID)
    assert found is not None
    return found["words"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="a file of texts")
    parser.add_argument("overrides", nargs="*", help="key=value")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    differences = []
    for seed in range(options.seeds):
        told, device = [*options.overrides, f"seed={seed}"], torch.device(options.device)
        wide, narrow = (loss(options.target, told, device, wide=each) for each in (True, False))
        print(json.dumps({"seed": seed, "fp32": round(wide, 4), "bf16": round(narrow, 4)}), flush=True)
        differences.append(narrow - wide)
    print(json.dumps({"mean_difference": round(fmean(differences), 4)}))


if __name__ == "__main__":
    main()
