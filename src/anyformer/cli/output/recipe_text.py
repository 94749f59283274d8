"""A commented recipe: every key with the help text of its field."""

import shlex
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anyformer.core import Spec, kind_of
from anyformer.core.discovery import discover
from anyformer.core.plain_data import inline, key_text
from anyformer.core.schema import describe
from anyformer.data.preparation.pipeline import DataSpec
from anyformer.data.record import SourceSpec
from anyformer.data.tokenizers.tokenizer import TokenizerSpec
from anyformer.disk import RECIPE
from anyformer.errors import SpecError
from anyformer.objectives.objective import Objective
from anyformer.optim.adamw import AdamW
from anyformer.optim.optimizer import OptimizerSpec, ScheduleSpec
from anyformer.optim.schedules.cosine import Cosine
from anyformer.training import Recipe, load
from anyformer.training.recipes.recipe import CheckpointSpec, EvaluateSpec, LogSpec, SampleSpec, TrainSpec

WIDTH = 110
USUAL = {"train": {"steps": 300, "batch_tokens": 4096}, "evaluate": {"every": 50}, "checkpoint": {"every": 100}}


@dataclass(frozen=True)
class RecipeTask:
    """A task for `anyformer new`: its model, built-in data and objective, and an example source for the user's data."""

    goal: str
    preset: str
    source: str
    objective: str
    user_source: Mapping[str, Any]
    tokenizer: Mapping[str, Any] = field(default_factory=lambda: {"kind": "bpe", "size": 2048})


TASKS = {
    "language-model": RecipeTask(
        "continues any text", "small", "python_topics", "next_token", {"kind": "text", "path": "notes.txt"}
    ),
    "masked-words": RecipeTask(
        "fills gaps in a text", "small-encoder", "python_topics", "masked_words", {"kind": "text", "path": "notes.txt"}
    ),
    "translation": RecipeTask(
        "translates a text", "small-encoder-decoder", "number_words", "seq2seq",
        {"kind": "pairs", "path": "talks.en", "target_path": "talks.de"}, {"kind": "bpe", "size": 450},
    ),
    "summaries": RecipeTask(
        "summarises a text", "small-encoder-decoder", "docstring_summaries", "seq2seq",
        {"kind": "jsonl", "path": "articles.jsonl", "text": "article", "target": "summary"},
    ),
    "classification": RecipeTask(
        "predicts the class of a text", "small-encoder", "unicode_names", "classify",
        {"kind": "csv", "path": "reviews.csv", "text": "review", "label": "stars"},
    ),
}  # fmt: skip


def create(folder: Path, task: str) -> Path:
    """Creates the folder with its recipe; an existing folder is an error."""
    if folder.name in ("", ".", "..") or not str(folder).isprintable():
        raise SpecError(f"{str(folder)!r} names no new folder. For example: anyformer new diary")
    text, recipe = compose(folder.name, TASKS[task], shlex.quote(str(folder / RECIPE))), folder / RECIPE
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise SpecError(f"{folder}: exists already. Choose another name.") from None
    except OSError as error:
        raise SpecError(f"{folder}: cannot be created: {error.strerror}.") from None
    try:
        recipe.write_text(text, encoding="utf-8")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)  # the same command would be refused after space was freed
        raise SpecError(f"{folder}: cannot be created: {error.strerror}.") from None
    return recipe


def compose(name: str, task: RecipeTask, path: str) -> str:
    """The text of a recipe for a task; `path` is quoted in its example commands."""
    discover()
    parts = [*_head(name, task, path), *_data(task), *_model(task)]
    parts += _section("objective", kind_of(Objective, task.objective), {"kind": task.objective}, Objective)
    parts += _section("train", TrainSpec, USUAL["train"])
    parts += _section("optimizer", AdamW, {"kind": AdamW.kind, "lr": AdamW().lr}, OptimizerSpec)
    parts += _section("schedule", Cosine, {"kind": Cosine.kind}, ScheduleSpec)
    parts += _section("evaluate", EvaluateSpec, USUAL["evaluate"])
    parts += _section("checkpoint", CheckpointSpec, USUAL["checkpoint"])
    parts += [*_section("log", LogSpec, {}), *_section("sample", SampleSpec, {})]
    return "\n".join(parts).rstrip("\n") + "\n"


def _head(name: str, task: RecipeTask, path: str) -> Iterator[str]:
    source = kind_of(SourceSpec, task.source).docstring.strip().rstrip(".")
    yield from _text(f"A model that {task.goal}. As it is, it learns from {task.source}: {source}.")
    yield "#"
    yield f"#   anyformer train {path}"
    short = shlex.quote(f"runs/{name}-short")
    yield f"#   anyformer train {path} train.steps=20 --out {short}    any key can be set on the command line"
    yield "#"
    yield from _text(
        "The most important sections come first. Lines that start with '# ' are comments. Lines that start with '#' "
        "and a key show a default: remove the # to change it."
    )
    yield ""
    yield from _keys(Recipe, {"name": name, "seed": 0}, ("name", "seed", "init_from"))


def _data(task: RecipeTask) -> Iterator[str]:
    yield from _section("data.source", kind_of(SourceSpec, task.source), {"kind": task.source}, SourceSpec)
    yield from _text(
        "For your own data, replace the lines above by these (anyformer data FILE shows what a file contains):"
    )
    yield from (f"#{key} = {inline(value)}" for key, value in task.user_source.items())
    tokenizer = kind_of(TokenizerSpec, str(task.tokenizer["kind"]))
    yield from _section("data.tokenizer", tokenizer, task.tokenizer, TokenizerSpec)
    yield from _section("data", DataSpec, {"context": 512}, skip=("source", "tokenizer"))


def _model(task: RecipeTask) -> Iterator[str]:
    model = load(task.preset)
    yield from ("", "[model]")
    yield from _text(
        f"The preset to start from. Others: anyformer parts {model.kind}. In full: anyformer config show {task.preset}"
    )
    yield f"preset = {inline(task.preset)}"
    for side in ("encoder", "decoder") if model.needs_source else ("",):
        single: Any = getattr(model, side) if side else model
        if side:
            yield from ("", f"[model.{side}]")
        yield from _keys(type(single), {"dim": single.dim}, ("dim",))
        yield from ("", f"[{'.'.join(filter(None, ('model', side, 'stack')))}]")
        yield from _keys(type(single.stack), {"depth": single.stack.depth}, ("depth",))


def _section(
    header: str, cls: type[Spec], values: Mapping[str, Any], family: type[Spec] | None = None, skip: Sequence[str] = ()
) -> Iterator[str]:
    """A table of the recipe: its keys with their values, then the other options with their defaults as comments."""
    yield from ("", f"[{header}]  # {cls.docstring.strip()}")
    if family is not None:
        yield from _text(f"Kinds: {', '.join(sorted(family.kinds))}.")
        yield f"kind = {inline(values['kind'])}"
    names = [option.name for option in describe(cls) if option.name not in skip]
    yield from _keys(cls, values, sorted(names, key=lambda name: name not in values))


def _keys(cls: type[Spec], values: Mapping[str, Any], names: Any) -> Iterator[str]:
    options = {option.name: option for option in describe(cls)}
    for option in (options[name] for name in names):
        closed = "|" in option.type or option.default is None
        yield from _text(option.help + (f" ({option.type})" if closed and option.name not in values else ""))
        key = key_text(option.name)
        if option.name in values:
            yield f"{key} = {inline(values[option.name])}"
        else:
            yield f"#{key} =" + ("" if option.default is None else f" {inline(option.default)}")


def _text(text: str) -> Iterator[str]:
    yield from (f"# {line}" for line in textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False))
