"""The settings of "Pre-training, three ways", and the run of one cell of its table: a pre-training or a fine-tuning.

All that decides a result is a constant of this file or of `benchmarks.pretraining_data`. The constants are stored with
the results before the first run; a later run with other constants is refused.
"""

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from anyformer.core import ModelSpec, Work, decode
from anyformer.core.costs import cost
from anyformer.data.batching.packings.bucket import Bucket
from anyformer.data.preparation.pipeline import DataSpec, prepared_for
from anyformer.data.preparation.shards import TOKENIZER, Prepared
from anyformer.data.sources.jsonl import JSONLines
from anyformer.data.tokenizers.bpe import BPE
from anyformer.data.tokenizers.file import File
from anyformer.disk import RECIPE, store
from anyformer.errors import TrainingError
from anyformer.objectives.masked_words import MaskedWords
from anyformer.objectives.next_token import NextToken
from anyformer.objectives.objective import Objective
from anyformer.objectives.span_corruption import SpanCorruption
from anyformer.objectives.spans import sizes
from anyformer.optim.adamw import AdamW
from anyformer.optim.schedules.cosine import Cosine
from anyformer.optim.schedules.linear import LinearSchedule
from anyformer.run import Run, train
from anyformer.study.planning import fit, measure_of
from anyformer.training.recipes.recipe import CheckpointSpec, EvaluateSpec, TrainSpec, load
from benchmarks.pretraining_data import TEXT, data_settings, refuse_difference, shared, sizes_of

Line = dict[str, Any]
PLAN, SHARED, PRETRAIN, FINETUNE = "plan", "shared", "pretrain", "finetune"
PRETRAINED, RANDOM = ARMS = ("pre-trained", "random weights")
CONTEXT, PIECES, TOLERANCE = 256, 8192, 0.02
"""Tokens of the longest row, size of the vocabulary, largest difference of the numbers of parameters."""
SEEDS, TRIAL_SEED = (0, 1, 2), 100
"""Seeds that are judged, and the seed that the learning rates are chosen with."""
PRETRAINING_RATES, TRIAL_SHARE = (1e-3, 2e-3, 4e-3), 4
"""Rates that are tried, each in a pre-training of a quarter of the updates."""
RATES = (1e-4, 3e-4, 1e-3, 3e-3)
"""Rates that are tried in fine-tuning, each in a run of the whole length; the same for both arms."""
DROPOUT = 0.1
PLAN_FILE = "plan.json"
DIVERGED = "diverged"
"""`failed` in the line of a run whose loss was not finite."""


@dataclass(frozen=True)
class Way:
    """One way to pre-train: a shape of model and its objective."""

    preset: str
    objective: Objective
    overrides: tuple[str, ...] = ()

    @property
    def writes(self) -> bool:
        """Whether the model can generate text."""
        return not isinstance(self.objective, MaskedWords)


_BRANCH = "model.stack.blocks.layer.branches"
WAYS = {
    "next token": Way(
        "small",
        NextToken(),
        (f"{_BRANCH}.0.part.kv_heads=8", f"{_BRANCH}.0.dropout={DROPOUT}", f"{_BRANCH}.1.dropout={DROPOUT}"),
    ),
    "masked words": Way("small-encoder", MaskedWords()),
    "span corruption": Way("small-encoder-decoder", SpanCorruption()),
}
BASELINE = next(iter(WAYS))
"""The way whose number of parameters and whose FLOPs the others are given."""


@dataclass(frozen=True)
class Task:
    """One fine-tuning."""

    title: str
    context: int
    batch_tokens: int
    steps: int
    generates: bool = False
    """Whether texts are written; otherwise texts are classified."""

    def ways(self) -> list[str]:
        """The ways whose models can do the task."""
        return [name for name, way in WAYS.items() if way.writes or not self.generates]

    def source(self, way: str, file: Path) -> JSONLines:
        """The texts. An encoder-decoder writes the name of the class, as T5 does."""
        if self.generates:
            return JSONLines(path=str(file), target="target", split="split")
        if self.writes_classes(way):
            return JSONLines(path=str(file), target="label", split="split")
        return JSONLines(path=str(file), label="label", split="split")

    def writes_classes(self, way: str) -> bool:
        return not self.generates and isinstance(WAYS[way].objective, SpanCorruption)

    def metrics(self, way: str) -> dict[str, str]:
        """Name in the table -> metric."""
        if self.generates:
            return {"chrF": "chrf", "BLEU": "bleu", "loss": "loss"}
        return {"accuracy": "exact_match" if self.writes_classes(way) else "accuracy"}


TASKS = {
    "sentiment": Task("sentiment of short texts", context=64, batch_tokens=2048, steps=500),
    "sections": Task("section of a package from its description", context=256, batch_tokens=4096, steps=700),
    "synopses": Task("synopsis of a package from its description", 256, 8192, steps=700, generates=True),
}


@dataclass(frozen=True)
class Scale:
    """The size of the study."""

    steps: int = 1500
    """Updates of a pre-training."""
    batch_tokens: int = 16_384
    """Tokens of an update of the first way, padding included."""
    share: int = 1
    """Fine-tunings take their updates divided by this."""
    every: int = 1
    """One of so many rows of the data is read."""
    tokenizer: int = PIECES
    overrides: tuple[str, ...] = ()
    """Changes of every model."""


FULL = Scale()
TINY = Scale(steps=4, batch_tokens=1024, share=250, every=20, tokenizer=512, overrides=("dim=32", "stack.depth=2"))
"""A trial of the program."""


class Cell(NamedTuple):
    """One run of the study. The key leaves out the rate of runs that are judged: it was chosen by trials."""

    stage: str
    way: str
    task: str
    arm: str
    seed: int
    rate: float
    trial: bool

    @property
    def key(self) -> tuple[Any, ...]:
        return (*self[:5], self.trial, self.rate if self.trial else None)


def text_data(folder: Path, scale: Scale) -> DataSpec:
    """The pre-training text, one piece in each row."""
    source = JSONLines(path=str(folder / TEXT), split="split")
    return DataSpec(source=source, tokenizer=BPE(size=scale.tokenizer), context=CONTEXT, packing=Bucket())


def make_plan(folder: Path, scale: Scale) -> Line:
    """Prepares the text, sizes the models, and sets the batches so that an update of each way costs the same FLOPs.
    A folder with the plan, and so maybe the weights, of other settings is refused."""
    prepared = prepared_for(text_data(folder, scale), folder / "cache")
    shutil.copy(prepared.folder / TOKENIZER, folder / "tokenizer.json")
    counts = prepared.counts["train"]
    length = round(counts["tokens"] / counts["samples"])
    models = models_of(prepared.words.size, scale)
    flops = {name: text_flops(name, model, length, prepared) for name, model in models.items()}
    ways = {
        name: {
            "model": model.to_dict(),
            "params": measure_of("params", CONTEXT)(model),
            "flops_per_text": flops[name],
            "batch_tokens": round(scale.batch_tokens * flops[BASELINE] / flops[name]),
        }
        for name, model in models.items()
    }
    plan = {"texts": counts["samples"], "tokens": counts["tokens"], "length": length, "ways": ways}
    plan = {"stage": PLAN, **plan, "sets": sizes_of(folder, TASKS), "settings": settings(scale)}
    file = folder / PLAN_FILE
    if file.is_file():
        refuse_other_plan(folder, json.loads(file.read_text(encoding="utf-8")), plan)
    store(file, json.dumps(plan))
    return plan


def refuse_other_plan(place: Path, stored: Line, plan: Line) -> None:
    """An error if a stored plan is not the present one: runs of both cannot be compared."""
    before, now = ({**plan, **plan.get("settings", {}), "settings": None} for plan in (stored, plan))
    refuse_difference(place, before, json.loads(json.dumps(now)))


def settings(scale: Scale) -> Line:
    """The settings, as they are stored with the results before the first run."""
    tasks = {name: [task.context, task.batch_tokens, task.steps] for name, task in TASKS.items()}
    return {
        "steps": scale.steps, "batch_tokens": scale.batch_tokens, "share": scale.share, "vocabulary": scale.tokenizer,
        "context": CONTEXT, "seeds": [*SEEDS], "trial_seed": TRIAL_SEED, "trial_share": TRIAL_SHARE,
        "pretraining_rates": [*PRETRAINING_RATES], "rates": [*RATES], "dropout": DROPOUT, "tasks": tasks,
        "overrides": [*scale.overrides], **data_settings(scale.every),
    }  # fmt: skip


def models_of(vocabulary: int, scale: Scale) -> dict[str, ModelSpec]:
    """The models by way, all with about the number of parameters of the first."""
    models = dict[str, ModelSpec]()
    measure = measure_of("params", CONTEXT)
    for name, way in WAYS.items():
        stacks = [f"model.{stack}." if stack else "model." for stack in load(way.preset).stack_paths]
        changes = [f"{stack}{change}" for stack in stacks for change in (*scale.overrides, f"vocab={vocabulary}")]
        model = load(way.preset, *way.overrides, *changes)
        models[name] = fit(model, measure(models[BASELINE]), measure, TOLERANCE)[0] if models else model
    return models


def text_flops(name: str, model: ModelSpec, length: int, prepared: Prepared) -> int:
    """FLOPs, forward and backward, of a text of `length` tokens. A head counts at the positions that it predicts; the
    special tokens around a text and all padding are left out."""
    objective, work, share = WAYS[name].objective, Work(length=length), 1.0
    if isinstance(objective, SpanCorruption):
        source, target = sizes(length, objective.share, objective.mean, len(prepared.words.sentinels))
        work = Work(length=target, source=source)
    elif isinstance(objective, MaskedWords):
        share = objective.share
    tree = cost(model, work)
    head = next((each.total for _, each in tree.walk() if each.name == "head" and each.total.flops_forward), None)
    assert head is not None
    left_out = (1 - share) * (head.flops_forward + head.flops_backward)
    return round(tree.total.flops_forward + tree.total.flops_backward - left_out)


def weights(folder: Path, way: str, seed: int) -> Path:
    """The run folder of a pre-training that is judged."""
    return folder / "pretrained" / f"{way.replace(' ', '-')}-{seed}"


def first_weights(folder: Path, way: str) -> Path:
    """The run folder of the first seed whose pre-training did not diverge; trials of fine-tuning start with it."""
    return next(place for seed in SEEDS if ((place := weights(folder, way, seed)) / RECIPE).is_file())


def compute(folder: Path, cell: Cell, scale: Scale) -> Line:
    """Trains the run of a cell, and returns its line of the results, also if it diverges."""
    if cell.stage == SHARED:
        return {**cell._asdict(), **shared(folder, ("sentiment", "synopses"))}
    plan = json.loads((folder / PLAN_FILE).read_text(encoding="utf-8"))
    model = decode(ModelSpec, plan["ways"][cell.way]["model"])
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        try:
            if cell.stage == PRETRAIN:
                facts = pretrain(folder, Path(temporary) / "run", cell, scale, model, plan)
            else:
                facts = fine_tune(folder, Path(temporary) / "run", cell, scale, model)
        except TrainingError as error:
            facts = {"valid_loss": None, "failed": DIVERGED, "error": str(error)}
            if cell.stage == PRETRAIN and not cell.trial:
                shutil.rmtree(weights(folder, cell.way, cell.seed), ignore_errors=True)  # of an earlier computation
    return {**cell._asdict(), **facts}


def pretrain(folder: Path, out: Path, cell: Cell, scale: Scale, model: ModelSpec, plan: Line) -> Line:
    """A pre-training; its folder is kept if it is judged."""
    way, steps = plan["ways"][cell.way], max(2, scale.steps // (TRIAL_SHARE if cell.trial else 1))
    run = train(
        model,
        data=text_data(folder, scale),
        objective=WAYS[cell.way].objective,
        optimizer=AdamW(lr=cell.rate),
        schedule=Cosine(warmup=0.1),
        train=TrainSpec(steps=steps, batch_tokens=way["batch_tokens"], stop=0),
        evaluate=EvaluateSpec(every=max(1, steps // 5), batches=20),
        checkpoint=CheckpointSpec(every=steps, keep=1, keep_best=not cell.trial),
        seed=cell.seed,
        out=out,
        cache=folder / "cache",
    )
    facts = progress(run)
    if not cell.trial:
        place = weights(folder, cell.way, cell.seed)
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(exist_ok=True)
        shutil.move(out, place)
    texts = facts["tokens"] / (plan["tokens"] / plan["texts"])
    return {**facts, "params": way["params"], "flops": round(texts * way["flops_per_text"])}


def fine_tune(folder: Path, out: Path, cell: Cell, scale: Scale, model: ModelSpec) -> Line:
    """A fine-tuning. Both arms have the same recipe; one starts with the weights of the pre-training of its seed."""
    task, start = TASKS[cell.task], None
    if cell.arm == PRETRAINED:
        start = first_weights(folder, cell.way) if cell.trial else weights(folder, cell.way, cell.seed)
    steps = max(2, task.steps // scale.share)
    source = task.source(cell.way, folder / f"{cell.task}.jsonl")
    tokenizer = File(path=str(folder / "tokenizer.json"), sentinels=0)
    run = train(
        model,
        data=DataSpec(source=source, tokenizer=tokenizer, context=task.context),
        optimizer=AdamW(lr=cell.rate, weight_decay=0.01),
        schedule=LinearSchedule(warmup=0.1),
        train=TrainSpec(steps=steps, batch_tokens=task.batch_tokens, stop=0),
        evaluate=EvaluateSpec(every=max(1, steps // 8), batches=200),
        checkpoint=CheckpointSpec(every=steps, keep=1, keep_best=not cell.trial),
        init_from=start,
        seed=cell.seed,
        out=out,
        cache=folder / "cache",
    )
    facts = {**progress(run), "params": parameters(run)}
    if cell.trial:
        return facts
    metrics = task.metrics(cell.way)
    scores = run.evaluate(split="test", metrics=tuple(metrics.values()))
    return {**facts, "scores": {name: score_line(scores, metric) for name, metric in metrics.items()}}


def score_line(scores: Mapping[str, Any], metric: str) -> Line:
    score = scores[metric]
    return {"value": score.value, "low": score.low, "high": score.high, "texts": score.units}


def progress(run: Run) -> Line:
    """What a run has done. `tokens`: text without padding; `seconds`: those of its loop."""
    state = run.state["progress"]
    if state["best"] is None:
        raise TrainingError("no validation loss was finite")
    lines: Sequence[Mapping[str, Any]] = [line for line in run.metrics() if "valid_loss" in line]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {
        "steps": state["step"], "best_step": run.best_step, "tokens": state["tokens"], "valid_loss": state["best"],
        "last_loss": lines[-1]["valid_loss"], "seconds": round(state["wall_s"], 1), "device": device,
    }  # fmt: skip


def parameters(run: Run) -> int:
    return sum(parameter.numel() for parameter in run.recipe.model.build(device="meta").parameters())
