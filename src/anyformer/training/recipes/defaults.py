"""What `anyformer train PATH` chooses where the user chooses nothing: one rule for each task, amount and device.

A rule gives a model, a tokenizer, a batch, a rate and a budget, with the reason. Choices depend on the data and the
kind of device alone, never on a timing, so the same command gives the same recipe. Measurements: docs/defaults.md.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from anyformer.core.plain_data import Tree, merge
from anyformer.data.sources.named_source import Extent
from anyformer.training.recipes.recipe import BUDGETS
from anyformer.training.recipes.toml_layers import TomlLayers, of_preset

Device = Literal["cpu", "gpu"]
MILLION = 1_000_000
EVALUATIONS = 20
"""Evaluations of a run, so that the best checkpoint is near the best step."""
LEAST_STEPS, SHORTEST = 100, 32
WHOLE_MODEL = {("model",), ("model", "preset"), ("model", "kind")}
"""Keys that name a whole model."""
FINE_TUNING = "fine-tuning"
"""Title of the values that suit pre-trained weights (`recipes/fine_tuning.py`)."""
DERIVED = "derived: "
"""Beginning of the origin of a derived value; the title of its rule follows."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The recipe for some forms of data, up to an amount of text, on some kinds of device."""

    forms: tuple[str, ...]
    devices: tuple[Device, ...] = ("cpu", "gpu")
    up_to: float = math.inf
    """Characters of all records."""
    title: str
    """What it is for, in words; the origin of its values."""
    why: str
    preset: str
    model: Tree = field(default_factory=dict)
    """Values that differ from the preset."""
    dropout: float | None = None
    """Dropout of every branch; None: as the preset has it."""
    sections: Tree
    """The other sections of the recipe: tokenizer, optimiser, schedule, batch."""
    context: int
    """Longest sequence; less if 95% of the records are shorter."""
    characters: float
    """Characters of a token, about."""
    epochs: float
    """Passes over the data, at most."""
    tokens: float
    """Tokens of the run, at most."""

    def layers(self, extent: Extent, named: Collection[tuple[str, ...]] = ()) -> TomlLayers:
        """The recipe for data of this extent. `named`: keys that the user sets; what depends on them is left out."""
        model = merge(of_preset(self.preset).data, {"model": self.model})
        for stack in (model["model"], *(model["model"].get(side, {}) for side in ("encoder", "decoder"))):
            stack.pop("vocab", None)  # it follows from the data
        if self.dropout is not None:
            _set_dropout(model, self.dropout)
        rest = merge({"data": {"context": context_for(extent, self.context, self.characters)}}, self.sections)
        budget = self._budget(extent, rest["train"]["batch_tokens"])
        tree = without_user_choices(merge(merge(model, rest), budget), named)
        return TomlLayers.of(tree, f"{DERIVED}{self.title}")

    def _budget(self, extent: Extent, batch: int) -> Tree:
        tokens = min(self.tokens, self.epochs * extent.characters / self.characters)
        steps = max(LEAST_STEPS, round(tokens / batch))
        every = max(1, steps // EVALUATIONS)
        return {"train": {"steps": steps}, "evaluate": {"every": every}, "checkpoint": {"every": max(every, 100)}}


def reasons(origins: Mapping[str, str]) -> list[str]:
    """The reasons of the rules that values come from: "little text on a CPU: ...". `origins`: dotted key -> origin."""
    reasons = []
    for rule in RULES:
        keys = [key for key, origin in origins.items() if origin == f"{DERIVED}{rule.title}"]
        if any(key.startswith("model.") for key in keys):
            reasons.append(f"{rule.title}: {rule.why}")
        elif keys:
            reasons.append(f"{rule.title}: tokens, batch and budget; the model was named, so its rates are not derived")
    tuned = f"{DERIVED}{FINE_TUNING}" in origins.values()
    return [*reasons, f"{FINE_TUNING}: a low rate and few passes keep what the weights know"] if tuned else reasons


def rule_for(extent: Extent, device: Device) -> Rule | None:
    """The first rule that fits; None: no rule is for data of this form, and the defaults of a recipe apply."""
    form, size = extent.contents.form, math.inf if extent.more else extent.characters
    fitting = (rule for rule in RULES if form in rule.forms and device in rule.devices and size <= rule.up_to)
    return next(fitting, None)


def context_for(extent: Extent, longest: int, characters: float) -> int:
    """A context of at most `longest` tokens with room for 95% of the records. Texts without labels are cut anywhere, so
    they fill any length. `characters`: of a token, about."""
    if extent.contents.plain:
        return longest
    needed = extent.long / characters + 2  # two special tokens
    return min(longest, max(SHORTEST, 1 << math.ceil(math.log2(needed))))


def without_user_choices(tree: Tree, named: Collection[tuple[str, ...]]) -> Tree:
    """Removes every derived value that depends on a choice of the user, in place.

    A learning rate was derived for an optimiser, and a vocabulary size for a tokenizer: the table is removed if the
    user names its kind. The model and the optimiser are removed if the user names a model; the number of steps and the
    interval between evaluations are removed if the user names a budget.
    """
    for key in named:
        if key in WHOLE_MODEL:
            tree.pop("model", None)
            tree.pop("optimizer", None)
        elif key == ("train", "parallel"):  # Muon needs whole matrices, which FSDP divides
            tree.pop("optimizer", None)
        elif key[0] == "train" and len(key) > 1 and key[1] in BUDGETS:
            tree["train"].pop("steps", None)
            tree["evaluate"].pop("every", None)
        elif key[-1] == "kind" and len(key) > 1:
            _drop(tree, key[:-1])
    return tree


def _drop(tree: Any, key: Sequence[str]) -> None:
    """Removes a table, in place; a list stays as it is, since the parts of a layer belong together."""
    for name in key[:-1]:
        tree = tree.get(name) if isinstance(tree, dict) else None
    if isinstance(tree, dict):
        tree.pop(key[-1], None)


def _set_dropout(tree: Any, chance: float) -> None:
    """Sets the dropout of every branch below, in place."""
    if isinstance(tree, dict):
        for branch in tree.get("branches", ()):
            branch["dropout"] = chance
        for value in tree.values():
            _set_dropout(value, chance)


_BYTES: Tree = {"kind": "byte"}
_LABELS: Tree = {
    "data": {"tokenizer": {"kind": "wordpiece", "size": 16_384, "case": "lower"}},
    "optimizer": {"kind": "adamw", "lr": 1e-2, "weight_decay": 0.01},
    "schedule": {"kind": "linear"},
    "evaluate": {"batches": 200},
}

_TEXT_ON_A_CPU = Rule(
    forms=("text",),
    devices=("cpu",),
    up_to=2 * MILLION,
    title="text on a CPU",
    why="bytes, since a learned vocabulary would see each of its words too rarely; with vectors for up to six of "
    "them, which learn in minutes what an n-gram knows",
    preset="small",
    model={"dim": 128, "stack": {"depth": 4}, "embedding": {"kind": "n_grams", "longest": 6}},
    dropout=0.1,
    sections={
        "data": {"tokenizer": _BYTES},
        "train": {"batch_tokens": 2048},
        "optimizer": {"kind": "muon", "lr": 0.02, "rest": {"kind": "adamw", "lr": 1e-2}},
        "schedule": {"kind": "linear"},
        "evaluate": {"batches": 20},
    },
    context=256,
    characters=1.0,
    epochs=30,
    tokens=2 * MILLION,
)

RULES: tuple[Rule, ...] = (
    Rule(
        forms=("numbers",),
        up_to=4 * MILLION,
        title="texts with numbers",
        why="as for labels, but wider and in smaller batches: a number needs more updates than a class",
        preset="bag-of-n-grams",
        model={"dim": 256, "dropout": 0.7, "embedding": {"buckets": 65_536}},
        sections={**_LABELS, "train": {"batch_tokens": 512}},
        context=512,
        characters=4.5,
        epochs=3.5,
        tokens=MILLION,
    ),
    Rule(
        forms=("classes",),
        up_to=0.7 * MILLION,
        title="few texts with labels",
        why="words and pairs of words, weighted by attention; in small batches, since few updates cannot tell many "
        "classes apart",
        preset="bag-of-n-grams",
        sections={**_LABELS, "train": {"batch_tokens": 2048}},
        context=512,
        characters=4.5,
        epochs=10,
        tokens=4 * MILLION,
    ),
    Rule(
        forms=("classes",),
        up_to=4 * MILLION,
        title="texts with labels",
        why="words and pairs of words, weighted by attention, learn in seconds; `evaluate` compares a bag of words",
        preset="bag-of-n-grams",
        sections={**_LABELS, "train": {"batch_tokens": 4096}},
        context=512,
        characters=4.5,
        epochs=5,
        tokens=4 * MILLION,
    ),
    Rule(
        forms=("classes", "numbers"),
        title="many texts with labels",
        why="words and pairs of words, weighted by attention, learn in minutes; `evaluate` compares a bag of words",
        preset="bag-of-n-grams",
        sections={**_LABELS, "train": {"batch_tokens": 8192}},
        context=512,
        characters=4.5,
        epochs=4,
        tokens=16 * MILLION,
    ),
    Rule(
        forms=("labelled_pair", "choices"),
        title="pairs of texts with labels, and choices",
        why="words with a mark where the other text has them too: a network does not learn from a few thousand pairs "
        "which words are equal",
        preset="small-encoder",
        model={"dim": 128, "stack": {"depth": 1}, "embedding": {"kind": "matches"}},
        dropout=0.1,
        sections={
            "data": {"tokenizer": {"kind": "wordpiece", "size": 16_384}},
            "train": {"batch_tokens": 2048},
            "optimizer": {"kind": "adamw", "lr": 2e-3},
            "schedule": {"kind": "linear"},
        },
        context=512,
        characters=4.5,
        epochs=2,
        tokens=4 * MILLION,
    ),
    Rule(
        forms=("tags",),
        devices=("cpu",),
        title="tagged words on a CPU",
        why="a narrow encoder learns in minutes, and over-fits after a few passes; capitals tell names",
        preset="small-encoder",
        model={"dim": 128, "stack": {"depth": 2}},
        dropout=0.2,
        sections={
            "data": {"tokenizer": {"kind": "wordpiece", "size": 16_384}},
            "train": {"batch_tokens": 2048},
            "optimizer": {"kind": "adamw", "lr": 2e-3},
            "schedule": {"kind": "linear"},
            "evaluate": {"batches": 50},
        },
        context=256,
        characters=4.5,
        epochs=8,
        tokens=1.5 * MILLION,
    ),
    Rule(
        forms=("chat",),
        devices=("cpu",),
        title="conversations on a CPU",
        why="a narrow decoder learns them in minutes; `init_from=` starts from weights that know the language",
        preset="small",
        model={"dim": 128, "stack": {"depth": 4}},
        sections={
            "data": {"tokenizer": {"kind": "bpe", "size": 4096}},
            "train": {"batch_tokens": 2048},
            "optimizer": {"kind": "muon", "lr": 0.02},
            "evaluate": {"batches": 20},
        },
        context=512,
        characters=3.0,
        epochs=8,
        tokens=1.5 * MILLION,
    ),
    Rule(
        forms=("text",),
        devices=("cpu",),
        up_to=0.2 * MILLION,
        title="little text on a CPU",
        why="after 90 s of one core Muon is at 1.84 bits a byte where AdamW is at 2.88; bytes, since a learned "
        "vocabulary would see each of its words too rarely",
        preset="small",
        model={"dim": 128, "stack": {"depth": 4}},
        dropout=0.1,
        sections={
            "data": {"tokenizer": _BYTES},
            "train": {"batch_tokens": 2048},
            "optimizer": {"kind": "muon", "lr": 0.02},
            "evaluate": {"batches": 20},
        },
        context=256,
        characters=1.0,
        epochs=30,
        tokens=2 * MILLION,
    ),
    _TEXT_ON_A_CPU,
    replace(_TEXT_ON_A_CPU, up_to=math.inf, title="much text on a CPU", tokens=4 * MILLION),
    Rule(
        forms=("text",),
        devices=("gpu",),
        up_to=4 * MILLION,
        title="little text on a GPU",
        why="bytes, dropout, and a stop where validation is best",
        preset="small",
        model={"dim": 384, "stack": {"depth": 6}},
        dropout=0.2,
        sections={
            "data": {"tokenizer": _BYTES},
            "train": {"batch_tokens": 16_384},
            "optimizer": {"kind": "adamw", "lr": 1e-3, "beta2": 0.99},
            "schedule": {"kind": "cosine", "warmup": 100},
            "evaluate": {"batches": 20},
        },
        context=256,
        characters=1.0,
        epochs=25,
        tokens=100 * MILLION,
    ),
    Rule(
        forms=("text",),
        devices=("gpu",),
        title="much text on a GPU",
        why="a vocabulary of 8,192 pieces and a model of 30M parameters",
        preset="small",
        model={"dim": 512, "stack": {"depth": 8}},
        dropout=0.1,
        sections={
            "data": {"tokenizer": {"kind": "bpe", "size": 8192}},
            "train": {"batch_tokens": 32_768},
            "optimizer": {"kind": "adamw", "lr": 1e-3},
            "schedule": {"kind": "cosine", "warmup": 100},
        },
        context=512,
        characters=4.0,
        epochs=10,
        tokens=100 * MILLION,
    ),
    Rule(
        forms=("pair",),
        devices=("cpu",),
        title="pairs on a CPU",
        why="a narrow encoder and decoder, and pieces that both languages share",
        preset="small-encoder-decoder",
        model={
            side: {"dim": 128, "stack": {"depth": 2}, "init": {"kind": "xavier"}} for side in ("encoder", "decoder")
        },
        dropout=0.1,
        sections={
            "data": {"tokenizer": {"kind": "bpe", "size": 4096}},
            "train": {"batch_tokens": 2048},
            "optimizer": {"kind": "adamw", "lr": 2e-3, "beta2": 0.98},
            "schedule": {"kind": "linear", "warmup": 0.1},
        },
        context=128,
        characters=3.0,
        epochs=30,
        tokens=3 * MILLION,
    ),
    Rule(
        forms=("pair",),
        devices=("gpu",),
        title="pairs on a GPU",
        why="dropout by the usual recipe for small parallel corpora, and pieces that both sides share",
        preset="small-encoder-decoder",
        dropout=0.2,
        sections={
            "data": {"tokenizer": {"kind": "bpe", "size": 8192}},
            "train": {"batch_tokens": 8192},
            "optimizer": {"kind": "adamw", "lr": 1e-3, "beta2": 0.98},
            "schedule": {"kind": "inverse_square_root", "warmup": 500},
        },
        context=256,
        characters=3.0,
        epochs=20,
        tokens=60 * MILLION,
    ),
)
