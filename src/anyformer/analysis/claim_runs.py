"""Small training runs for claims about learning: one mixer in an otherwise equal model, and its accuracy."""

import json
import random
from itertools import islice
from pathlib import Path
from statistics import fmean

import torch

from anyformer.core import Frame
from anyformer.data.record import SourceSpec
from anyformer.data.synthetic.task import SyntheticTask
from anyformer.disk import RECIPE
from anyformer.evaluation.evaluating import evaluate
from anyformer.evaluation.metrics.metric import Job
from anyformer.run import Run, train
from anyformer.training.runs.session import Watcher

QUIET = (
    "log.every=50", "checkpoint.every=0", "sample.tokens=1", "evaluate.every=0", "evaluate.batches=1",
)  # fmt: skip
LAYER = "model.stack.blocks.layer.branches"
RNN, LSTM, S4D = '{kind="rnn"}', '{kind="lstm"}', '{kind="s4d"}'
ATTENTION = '{kind="attention", heads=4, position={kind="rope"}}'
CONVOLUTION = '{kind="conv", kernel=5, activation="relu"}'
PATTERN, LETTERS, PATTERN_LENGTH = "abc", "abcdef", 24
PATTERN_HEAD = 'model.head={kind="classifier", classes=2, pool={kind="mean"}}'
"""Pools over all places, because the receptive field of a convolution is small."""
PATTERN_RECIPE = ("data.tokenizer.kind=character", "data.context=32", "data.valid=0", "objective.kind=classify",
                  "train.steps=300", "train.batch_tokens=2048", "optimizer.lr=1e-3")  # fmt: skip


def learn(folder: Path, name: str, target: str | SourceSpec, *overrides: str) -> Run:
    """Trains into `folder/name`; an existing run is resumed and not repeated."""
    out = folder / name
    if (out / RECIPE).is_file():
        return train(out, resume=True, cache=folder / "cache", watcher=Watcher())
    return train(target, *QUIET, *overrides, out=out, cache=folder / "cache", watcher=Watcher())


def stack(mixer: str, *, dim: int = 64, depth: int = 2, encoder: bool = False) -> tuple[str, ...]:
    """Overrides for a decoder or encoder whose layers are this mixer and an MLP."""
    preset = "small-encoder" if encoder else "small"
    branches = f'{LAYER}=[{{part={mixer}}}, {{part={{kind="mlp", hidden={2 * dim}}}}}]'
    return (f"model.preset={preset}", f"model.dim={dim}", f"model.stack.depth={depth}", branches,
            "model.init.kind=xavier")  # fmt: skip


def accuracy(run: Run) -> float:
    """Accuracy on 500 validation texts of the run."""
    return run.evaluate(metrics=("accuracy",), limit=500)["accuracy"].value


def right_on(run: Run, task: SyntheticTask) -> float:
    """Accuracy on the labelled texts of a task, which need not be the task that the run was trained on."""
    job = Job(predictor=run.trained(), records=list(task.records()))
    return evaluate(job, ("accuracy",)).scores["accuracy"].value


def symbols_right(run: Run) -> float:
    """Share of the target symbols that are generated at the right place, on 100 validation texts."""
    chosen = list(islice(run.records(), 100))
    targets = [(record.target or "").split() for record in chosen]
    outputs = [text.split() for text in run.generate([record.text for record in chosen])]
    right = [sum(a == b for a, b in zip(*pair, strict=False)) for pair in zip(targets, outputs, strict=True)]
    return sum(right) / sum(map(len, targets))


@torch.no_grad()
def last_tag_accuracy(run: Run, task: SyntheticTask) -> float:
    """Share of the texts of a task whose last word is tagged right."""
    trained, model = run.trained("cpu"), run.model()
    records = list(task.records())
    tokens = torch.tensor([trained.tokenizer.encode(record.text) for record in records])
    tags = [trained.contents.tags[tag] for tag in model(tokens, Frame()).y[:, -1].argmax(-1).tolist()]
    return fmean(tag == str(record.label) for tag, record in zip(tags, records, strict=True))


def pattern_texts(file: Path, count: int, seed: int) -> Path:
    """Writes labelled texts, half of them with the pattern at a random place."""
    rng = random.Random(f"{seed} {count}")
    lines: list[str] = []
    while len(lines) < count:
        text = "".join(rng.choices(LETTERS, k=PATTERN_LENGTH))
        positive = len(lines) % 2 == 1
        if positive:
            place = rng.randrange(PATTERN_LENGTH - len(PATTERN))
            text = text[:place] + PATTERN + text[place + len(PATTERN) :]
        if (PATTERN in text) == positive:
            lines.append(json.dumps({"text": text, "label": "yes" if positive else "no"}))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file
