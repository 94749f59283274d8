"""Eight families of models learn the fifteen synthetic tasks, at equal parameters and with equal tuning.

A model learns texts of a quarter, a half, three quarters and the whole of the task's size, and then answers fresh texts
of that size and of twice, four and eight times as much. The size of a task is its length, pairs or terms.
"""

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeAlias

import torch

from anyformer.analysis.parallel_cells import in_parallel
from anyformer.core import Frame, decode
from anyformer.data.preparation.pipeline import prepared_for
from anyformer.data.record import Record
from anyformer.data.sources.mixture import MixtureSource
from anyformer.data.synthetic.adding import Adding
from anyformer.data.synthetic.anbn import AnBn
from anyformer.data.synthetic.associative_recall import AssociativeRecall
from anyformer.data.synthetic.copy import Copy
from anyformer.data.synthetic.dyck import Dyck
from anyformer.data.synthetic.first_token_recall import FirstTokenRecall
from anyformer.data.synthetic.flip_flop import FlipFlop
from anyformer.data.synthetic.future_label import FutureLabel
from anyformer.data.synthetic.in_context_regression import InContextRegression
from anyformer.data.synthetic.listops import ListOps
from anyformer.data.synthetic.modular_addition import ModularAddition
from anyformer.data.synthetic.parity import Parity
from anyformer.data.synthetic.reverse import Reverse
from anyformer.data.synthetic.selective_copy import SelectiveCopy
from anyformer.data.synthetic.sort import Sort
from anyformer.data.synthetic.task import SyntheticTask
from anyformer.errors import TrainingError
from anyformer.evaluation.evaluating import evaluate
from anyformer.evaluation.metrics.metric import Job
from anyformer.evaluation.metrics.word_likelihood import word_sums
from anyformer.objectives.objective import Predictor
from anyformer.run import train
from anyformer.study.planning import plan
from anyformer.study.study import read_study
from anyformer.training.recipes.python_values import layers_of
from anyformer.training.recipes.recipe import Recipe
from anyformer.training.recipes.resolve import data_of
from anyformer.training.runs.session import Watcher

FAMILIES = ("transformer", "window", "cnn", "rnn", "lstm", "s4d", "mamba2", "hybrid")
"""The arms of `anyformer compare` with these names; the first one has the size that the others are matched to."""
MULTIPLES = (1, 2, 4, 8)
"""Sizes of the test texts, in multiples of the largest size that was learned."""
RATES, SEEDS, TRIAL_SEED = (3e-4, 1e-3, 3e-3, 1e-2), (0, 1, 2), 1_000_000
TRIAL_TEXTS, TEST_TEXTS = 2, 1
"""Seeds of the texts that trials and finished models are judged on; models learn texts of seed 0."""
LABEL, TAGS, TARGET = "classify", "token_labels", "seq2seq"
CellResult: TypeAlias = dict[str, Any]
"""The loss of a trial, or the accuracy of a model at each of `MULTIPLES`."""
CACHE, ROWS = "cache", 64
CONTEXT = 384
"""Tokens of the longest test text, eight times the size that was learned."""
WINDOW, KERNEL = 16, 5
"""Two layers of windowed attention see 30 tokens back, four layers of convolutions 60: most learned texts whole."""
LAYERS = ("layer", "layer2", "layer4", "layer8")
MODELS = (
    "model.dim=128", "model.stack.depth=2", f"study.arms={list(FAMILIES)}", "study.tolerance=0.04",
    f"arms.window={{like='window', model.stack.blocks.layer.branches.0.part.mask.size={WINDOW}}}",
    "arms.cnn={like='cnn', model.stack.depth=4, "
    + ", ".join(f"model.stack.blocks.{layer}.branches.0.part.kernel={KERNEL}" for layer in LAYERS) + "}",
)  # fmt: skip
RECIPE = (
    f"data.context={CONTEXT}", "data.tokenizer.kind=word", "train.batch_tokens=4096", "train.stop=0",
    "train.precision=fp32", "data.valid=0", "checkpoint.every=0", "log.every=100", "sample.tokens=1",
)  # fmt: skip


@dataclass(frozen=True)
class SuiteTask:
    """A synthetic task at the largest size that is learned."""

    task: SyntheticTask
    size: str
    """The field of the task that grows."""
    objective: str

    @property
    def trained(self) -> int:
        """The largest size that is learned."""
        return int(getattr(self.task, self.size))

    def at(self, size: int, count: int, seed: int) -> SyntheticTask:
        """The task at another size."""
        return self.task.with_(self.size, size).with_("count", count).with_("seed", seed)

    def source(self, texts: int) -> MixtureSource:
        """Texts of four sizes, to learn from."""
        sizes = [self.trained * quarters // 4 for quarters in (1, 2, 3, 4)]
        return MixtureSource(sources=tuple(self.at(size, texts // len(sizes), seed=0) for size in sizes))

    def chance(self, multiple: int) -> float:
        """The accuracy of the best blind guess at a multiple of the size; the end of a target is one of its symbols."""
        task = self.at(self.trained * multiple, 1, 0)
        if self.objective != TARGET:
            return task.chance
        symbols = len((task.record(0).target or "").split())
        return (symbols * task.chance + 1) / (symbols + 1)

    def middle(self, multiple: int) -> float:
        """The middle between chance and 1: what counts as learned."""
        return (1 + self.chance(multiple)) / 2

    def fresh_texts(self, multiple: int, count: int, seed: int) -> list[Record]:
        """Texts of another seed at a multiple of the size. Where lengths are drawn, those below three quarters are
        left out. Of `anbn` there are so few short words that all of them are learned too."""
        records = self.at(self.trained * multiple, 100 * count, seed)
        longest = max(len(record.text.split()) for record in islice(records.records(), count))
        return list(islice((record for record in records.records() if _long(record, longest)), count))


def _long(record: Record, longest: int) -> bool:
    return 4 * len(record.text.split()) >= 3 * longest


TASKS: Mapping[str, SuiteTask] = {
    suite.task.kind: suite
    for suite in (
        SuiteTask(FirstTokenRecall(length=40), "length", LABEL),
        SuiteTask(FlipFlop(length=20), "length", LABEL),
        SuiteTask(AssociativeRecall(pairs=4, symbols=32), "pairs", LABEL),
        SuiteTask(SelectiveCopy(length=40), "length", TARGET),
        SuiteTask(Copy(length=20), "length", TARGET),
        SuiteTask(Reverse(length=20), "length", TARGET),
        SuiteTask(Sort(length=20), "length", TARGET),
        SuiteTask(Parity(length=40), "length", TAGS),
        SuiteTask(ModularAddition(symbols=10, terms=8), "terms", LABEL),
        SuiteTask(AnBn(length=40), "length", LABEL),
        SuiteTask(Dyck(length=40), "length", LABEL),
        SuiteTask(ListOps(length=40), "length", LABEL),
        SuiteTask(Adding(length=40), "length", LABEL),
        SuiteTask(InContextRegression(pairs=8), "pairs", LABEL),
        SuiteTask(FutureLabel(length=40), "length", TAGS),
    )
}


class Effort(NamedTuple):
    """How much is spent on a run."""

    steps: int = 750
    """Updates of a run, and of a trial of a learning rate."""
    texts: int = 60_000
    """Texts to learn from."""
    test_texts: int = 400
    """Texts of each size to answer."""


def suite_results(folder: Path) -> dict[str, Any]:
    """Trains all families on all tasks. "params": task -> family -> parameters; "rates": task -> family -> learning
    rate; "accuracy": task -> family -> seed -> accuracy at each of `MULTIPLES`.

    Every family tries the same learning rates by whole runs, on a seed that is not judged; the rate with the lowest
    loss on fresh texts is taken.
    """
    effort = Effort()
    plans = in_parallel(planned, [(task, effort.texts) for task in TASKS], folder)
    for task, plan_of_task in zip(TASKS, plans, strict=True):
        _plan_file(folder, task).write_text(json.dumps(plan_of_task), encoding="utf-8")
    cells = [(task, family) for task in TASKS for family in FAMILIES]
    trials = [(*cell, rate, TRIAL_SEED, *effort) for cell in cells for rate in RATES]
    losses = dict(zip(trials, (run["loss"] for run in in_parallel(train_cell, trials, folder)), strict=True))
    rates = {cell: min(RATES, key=lambda rate: losses[*cell, rate, TRIAL_SEED, *effort]) for cell in cells}
    runs = [(*cell, rates[cell], seed, *effort) for cell in cells for seed in SEEDS]
    accuracy = dict(zip(runs, (run["accuracy"] for run in in_parallel(train_cell, runs, folder)), strict=True))
    return {
        "params": {
            task: {name: arm["params"] for name, arm in arms.items()} for task, arms in zip(TASKS, plans, strict=True)
        },
        "rates": {task: {family: rates[task, family] for family in FAMILIES} for task in TASKS},
        "accuracy": {
            task: {
                family: [accuracy[task, family, rates[task, family], seed, *effort] for seed in SEEDS]
                for family in FAMILIES
            }
            for task in TASKS
        },
    }


def planned(folder: Path, task: str, texts: int) -> dict[str, Any]:
    """Family -> its recipe for a task, and its number of parameters, which is within 4% of that of the first family."""
    suite = TASKS[task]
    overrides = (f"objective.kind={suite.objective}", *RECIPE, *MODELS)
    study = read_study("small", overrides, layers_of(suite.source(texts), None, {}))
    prepared = prepared_for(data_of(study.arms[FAMILIES[0]]), folder / CACHE)
    return {arm.name: {"params": arm.budgets.params, "recipe": arm.recipe.to_dict()} for arm in plan(study, prepared)}


def train_cell(
    folder: Path, task: str, family: str, rate: float, seed: int, steps: int, texts: int, test_texts: int
) -> CellResult:
    """Trains one model: its loss on texts of the learned size if it is a trial, otherwise its accuracy at each size. A
    model that diverges has an infinite loss, or no right answer."""
    recipe = json.loads(_plan_file(folder, task).read_text(encoding="utf-8"))[family]["recipe"]
    changes = f"optimizer.lr={rate}", f"seed={seed}", f"train.steps={steps}"
    with tempfile.TemporaryDirectory() as runs:
        try:
            run = train(
                decode(Recipe, recipe), *changes, out=Path(runs) / "run", cache=folder / CACHE, watcher=Watcher()
            )
        except TrainingError:
            return {"loss": math.inf} if seed == TRIAL_SEED else {"accuracy": [0.0] * len(MULTIPLES)}
        predictor = run.trained()
    suite = TASKS[task]
    if seed == TRIAL_SEED:
        job = Job(predictor=predictor, records=suite.fresh_texts(1, test_texts, TRIAL_TEXTS))
        return {"loss": evaluate(job, ("loss",)).scores["loss"].value}
    return {
        "accuracy": [
            accuracy_of(predictor, suite.fresh_texts(multiple, test_texts, TEST_TEXTS)) for multiple in MULTIPLES
        ]
    }


def _plan_file(folder: Path, task: str) -> Path:
    return folder / f"plan-{task}.json"


def accuracy_of(predictor: Predictor, records: Sequence[Record]) -> float:
    """The share of right answers: labels, tags (of a text with a label the last tag alone), or the symbols of a target,
    its end included, each behind the right symbols before it."""
    if records[0].tags:
        return _tag_accuracy(predictor, records)
    job = Job(predictor=predictor, records=list(records))
    if records[0].target is None:
        return evaluate(job, ("accuracy",)).scores["accuracy"].value
    (_, symbols, hits, _), _ = word_sums(job)
    return float(hits.sum() / symbols.sum())


@torch.no_grad()
def _tag_accuracy(predictor: Predictor, records: Sequence[Record]) -> float:
    names, shares = predictor.contents.tags, []
    predictor.model.eval()
    for start in range(0, len(records), ROWS):
        part = records[start : start + ROWS]
        tokens = torch.tensor([predictor.tokenizer.encode(record.text) for record in part], device=predictor.device)
        chosen = predictor.model(tokens, Frame()).y.argmax(-1).tolist()
        for record, tags in zip(part, chosen, strict=True):
            scored = record.tags[-1:] if record.label is not None else record.tags
            shares.append(fmean(names[tag] == tag_of for tag, tag_of in zip(tags[-len(scored) :], scored, strict=True)))
    return fmean(shares)
