"""Time to quality: a recipe of ours beside nanoGPT's in a plain compiled loop, on the same tokens of the same text.

    python -m benchmarks.speedrun prose.jsonl.gz --arm plain --rate 1e-3 --out speedrun.jsonl
    python -m benchmarks.speedrun prose.jsonl.gz --arm ours --out speedrun.jsonl key=value ...

Both are judged on the same windows of the validation split. Seconds are counted from the start of the process, so that
imports, compilation and validation are part of them; the data are prepared beforehand. One line of JSON for each run,
with a point (step, seconds, loss) for each validation.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.data.preparation.pipeline import prepared_for
from anyformer.run import train
from anyformer.training import Trainer, Watcher
from anyformer.training.loop.feed import Feed, Loader
from anyformer.training.recipes.resolve import data_of, draft
from benchmarks import nano
from benchmarks.trainers import trainer_of

SHAPES = {"10m": {"dim": 320, "heads": 5, "depth": 6}, "35m": {"dim": 512, "heads": 8, "depth": 10}}
STEPS = {"10m": 2000, "35m": 2000}
CONTEXT, ROWS, WARMUP, BETA2 = 512, 64, 100, 0.95
HELD_OUT = 655_360
"""Tokens of the validation split that both are judged on."""
POINTS = 20
"""Validations of a run."""
Point = tuple[int, float, float]
"""Step, seconds since the start of the process, validation loss."""


def since_start() -> float:
    return time.time() - psutil.Process().create_time()


class Curve(Watcher):
    """Keeps a point for each validation."""

    def __init__(self) -> None:
        self.points = list[Point]()

    def evaluated(self, step: int, loss: float) -> None:
        self.points.append((step, since_start(), loss))


def ours(target: str, overrides: Sequence[str], cache: Path) -> list[Point]:
    """Our verb `train`."""
    with tempfile.TemporaryDirectory() as folder:
        train(target, *overrides, out=Path(folder) / "run", cache=cache, watcher=(curve := Curve()))
    return curve.points


def held_out(trainer: Trainer) -> list[tuple[Tensor, Tensor]]:
    """Tokens and targets of the batches that our trainer validates on."""
    loader = Loader(prepared=trainer.prepared, split="valid", batch_tokens=ROWS * CONTEXT, epochs=1, shuffle=False)
    batches = list[tuple[Tensor, Tensor]]()
    for ready in Feed(loader, trainer.objective, 0, prefetch=False, device=trainer.world.device):
        batch = ready.batch.to(trainer.world.device)
        assert batch.targets is not None
        batches.append((batch.tokens, batch.targets))
        if len(batches) == HELD_OUT // (ROWS * CONTEXT):
            break
    return batches


class Loss(nn.Module):
    """Mean loss of a plain model; one module, so that logits and loss are compiled together."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.model(tokens).float().flatten(0, 1), targets.flatten())


def plain(trainer: Trainer, size: str, rate: float, steps: int, seed: int) -> list[Point]:
    """nanoGPT's recipe."""
    device = trainer.world.device
    tokens = torch.from_numpy(trainer.prepared.split("train").sides["tokens"].tokens.array[:].astype("int64"))
    text, batches = tokens.to(device), held_out(trainer)
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")
    model = nano.PlainModel(nano.Shape(trainer.prepared.words.size, CONTEXT, **SHAPES[size], bias=False)).to(device)
    optimizer, loss_of = nano.optimizer_of(model, BETA2), Loss(model)
    call = torch.compile(loss_of) if device.type == "cuda" else loss_of
    points = list[Point]()
    for step in range(1, steps + 1):
        rows = nano.windows_at(text, torch.randint(len(text) - CONTEXT - 1, (ROWS,)), CONTEXT)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = call(rows[:, :-1], rows[:, 1:])
        nano.update(loss, model, optimizer, nano.rate_at(step, steps, rate, WARMUP))
        if step % max(1, steps // POINTS) == 0:
            points.append((step, since_start(), _judge(loss_of.eval(), batches)))
            loss_of.train()
    return points


@torch.no_grad()
def _judge(loss_of: nn.Module, batches: Sequence[tuple[Tensor, Tensor]]) -> float:
    device = batches[0][0].device.type
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        return float(torch.stack([loss_of(*batch) for batch in batches]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--arm", choices=["ours", "plain", "prepare"], default="ours")
    parser.add_argument("--name", help="name of the run in the results; that of the arm if left out")
    parser.add_argument("--size", choices=[*SHAPES], default="10m")
    parser.add_argument("--recipe", help="a recipe of ours; recipes/speedrun-SIZE.toml if left out")
    parser.add_argument("--rate", type=float, default=1e-3, help="peak rate of the plain loop")
    parser.add_argument("--steps", type=int, help="steps of the plain loop")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/anyformer/data").expanduser())
    parser.add_argument("--out", type=Path)
    parser.add_argument("more", nargs="*", help="key=value for our recipe")
    options = parser.parse_intermixed_args()
    recipe = options.recipe or f"recipes/speedrun-{options.size}.toml"
    data = ["data.source.kind=jsonl", f"data.source.path={options.data}"]
    row: dict[str, Any] = {"arm": options.arm, "name": options.name or options.arm, "size": options.size}
    if options.arm == "prepare":
        prepared_for(data_of(draft(recipe, data)), options.cache)
        return
    if options.arm == "ours":
        points = ours(recipe, [*data, f"seed={options.seed}", *options.more], options.cache)
        row |= {"more": options.more}
    else:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        trainer, steps = trainer_of(recipe, data, options.cache, device), options.steps or STEPS[options.size]
        points = plain(trainer, options.size, options.rate, steps, options.seed)
        row |= {"rate": options.rate, "steps": steps}
    best = min(loss for _, _, loss in points)
    row |= {"seed": options.seed, "best": best, "seconds": since_start(), "points": points}
    print(json.dumps({key: value for key, value in row.items() if key != "points"}))
    if options.out:
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
