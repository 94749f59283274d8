"""Over-fitting a small text: ours beside a plain loop that draws its windows anew at every step.

    python -m benchmarks.fresh_windows --arm ours --seed 0 --data speeches.jsonl.gz --out fresh.jsonl

A character model of 10.7M parameters on the first megabyte of the speeches, 90% of it for training. Both arms have the
same text, vocabulary, shape, optimiser and schedule, and are judged by one function: the mean loss over windows of the
validation text that never move. `stream`: ours with float32 between layers. `fixed`: the plain loop with windows that
are cut at the same places in every epoch. One line of JSON an arm and seed; `--compare` prints the paired differences.
"""

import argparse
import gzip
import json
import tempfile
import time
from pathlib import Path
from statistics import mean, stdev

import torch
import torch.nn.functional as F
from scipy.stats import t as student
from torch import Tensor, nn

import anyformer as af
from anyformer.core import Frame
from anyformer.models import single
from benchmarks.nano import CLIP, DECAY, FLOOR, PlainModel, Shape, optimizer_of, rate_at, update, windows_at

CONTEXT, ROWS, DIM, HEADS, DEPTH, DROPOUT = 256, 64, 384, 6, 6, 0.2
RATE, WARMUP, BETA2 = 1e-3, 100, 0.99
BYTES, TRAINED = 1_000_000, 0.9


def texts(data: Path) -> tuple[str, str]:
    """The first megabyte of the speeches: training text and validation text."""
    with gzip.open(data, "rt", encoding="utf-8") as file:
        text = "\n\n".join(json.loads(line)["text"] for line in file)[:BYTES]
    cut = int(TRAINED * len(text))
    return text[:cut], text[cut:]


def windows(ids: Tensor) -> Tensor:
    """Windows of the validation text that never move."""
    return ids[: len(ids) // CONTEXT * CONTEXT].view(-1, CONTEXT)


@torch.no_grad()
def judge(logits: nn.Module, held_out: Tensor) -> float:
    """Mean loss of all tokens of all windows but the first ones. `logits`: tokens -> scores of the token after each."""
    logits.eval()
    total = 0.0
    for rows in held_out.split(ROWS):
        with torch.autocast(rows.device.type, torch.bfloat16, enabled=rows.is_cuda):
            scores = logits(rows[:, :-1])
        total += F.cross_entropy(scores.float().flatten(0, 1), rows[:, 1:].flatten(), reduction="sum").item()
    logits.train()
    return total / held_out[:, 1:].numel()


def plain(train: Tensor, held_out: Tensor, vocab: int, args: argparse.Namespace) -> list[float]:
    """Validation losses of a plain loop."""
    torch.manual_seed(args.seed)
    model = PlainModel(Shape(vocab, CONTEXT, DIM, HEADS, DEPTH, DROPOUT)).to(train.device)
    optimizer = optimizer_of(model, BETA2)
    step_model = torch.compile(model) if train.is_cuda else model
    losses, last = list[float](), len(train) - CONTEXT - 1
    for step in range(1, args.steps + 1):
        if args.arm == "fixed":
            starts = torch.randint(last // CONTEXT, (ROWS,)) * CONTEXT
        else:
            starts = torch.randint(last, (ROWS,))
        rows = windows_at(train, starts, CONTEXT)
        with torch.autocast(train.device.type, torch.bfloat16, enabled=train.is_cuda):
            scores = step_model(rows[:, :-1])
        loss = F.cross_entropy(scores.float().flatten(0, 1), rows[:, 1:].flatten())
        update(loss, model, optimizer, rate_at(step, args.steps, RATE, WARMUP))
        if step % args.every == 0:
            losses.append(judge(model, held_out))
    return losses


class Logits(nn.Module):
    """Our model as a function from tokens to logits. It reads <bos> before them, as in training."""

    def __init__(self, model: nn.Module, bos: int) -> None:
        super().__init__()
        self.model, self.bos = model, bos

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.model(F.pad(tokens, (1, 0), value=self.bos), Frame()).y
        return scores[:, 1:]


def ours(folder: Path, args: argparse.Namespace) -> af.Run:
    """Our run of the same recipe."""
    if args.arm == "stream":
        vars(single)["as_stream"] = lambda x: x  # the stream stays in float32
    sizes = [f"model.dim={DIM}", f"model.stack.depth={DEPTH}", f"model.max_len={CONTEXT}", f"model.dropout={DROPOUT}"]
    branches = "model.stack.blocks.layer.branches"
    sizes += [f"{branches}.0.part.heads={HEADS}", *(f"{branches}.{branch}.dropout={DROPOUT}" for branch in (0, 1))]
    sizes += [f"{branches}.0.part.dropout={DROPOUT}"]
    return af.train(
        "gpt2",
        f"data.source.path={folder / 'text.jsonl'}",
        f"data.context={CONTEXT}",
        "data.tokenizer.kind=character",
        *sizes,
        f"train.steps={args.steps}",
        f"train.batch_tokens={ROWS * CONTEXT}",
        f"train.clip={CLIP}",
        f"optimizer.lr={RATE}",
        f"optimizer.beta2={BETA2}",
        f"optimizer.weight_decay={DECAY}",
        "schedule.kind=cosine",
        f"schedule.warmup={WARMUP}",
        f"schedule.floor={FLOOR}",
        f"evaluate.every={args.every}",
        "evaluate.batches=100",
        f"seed={args.seed}",
        out=folder / "run",
        cache=folder / "cache",
    )


def measure(args: argparse.Namespace) -> dict[str, object]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    with tempfile.TemporaryDirectory() as scratch:
        folder, (train, valid) = Path(scratch), texts(args.data)
        lines = [json.dumps({"text": text, "split": split}) for text, split in ((train, "train"), (valid, "valid"))]
        (folder / "text.jsonl").write_text("\n".join(lines), encoding="utf-8")
        began = time.monotonic()
        tokenizer = af.Character().train([train])
        held_out = windows(torch.tensor(tokenizer.encode(valid), device=device))
        if args.arm in ("plain", "fixed"):
            ids = torch.tensor(tokenizer.encode(train), device=device)
            losses = plain(ids, held_out, tokenizer.words.size, args)
            best, last = min(losses), losses[-1]
        else:
            run = ours(folder, args)
            bos = tokenizer.words.bos
            best, last = (judge(Logits(run.model(choice, device), bos), held_out) for choice in ("best", "last"))
            losses = [line["valid_loss"] for line in run.metrics() if "valid_loss" in line]
        seconds = round(time.monotonic() - began)
    return {"arm": args.arm, "seed": args.seed, "best": best, "last": last, "losses": losses, "seconds": seconds}


def compare(file: Path) -> None:
    """Prints mean and 95% interval of the paired differences of the best losses to the plain loop."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    best = {(line["arm"], line["seed"]): line["best"] for line in lines}
    for arm in sorted({line["arm"] for line in lines}):
        values = [best[key] for key in best if key[0] == arm]
        differences = [best[key] - best["plain", key[1]] for key in best if key[0] == arm and ("plain", key[1]) in best]
        half = student.ppf(0.975, len(differences) - 1) * stdev(differences) / len(differences) ** 0.5
        print(f"{arm:7} best {mean(values):.4f}  less plain {mean(differences):+.4f} +- {half:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arm", choices=("ours", "stream", "plain", "fixed"), default="ours")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--every", type=int, default=150)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--compare", action="store_true")
    args = parser.parse_args()
    if args.compare:
        compare(args.out)
        return
    line = measure(args)
    print(json.dumps({key: value for key, value in line.items() if key != "losses"}))
    with args.out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
