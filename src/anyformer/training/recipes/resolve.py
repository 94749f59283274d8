"""From a target to a recipe in which nothing is left open: a file, a preset, or just a path to data.

What nobody says follows from what is there: the model from the form of the data, the objective from both, the
vocabulary from the tokenizer, the number of classes from the labels.
"""

import copy
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from anyformer.core import decode
from anyformer.core.discovery import discover
from anyformer.core.paths import Tree, merge, parse_override, split
from anyformer.data.preparation.contents import Contents
from anyformer.data.preparation.pipeline import DataSpec
from anyformer.data.preparation.prepared import Prepared
from anyformer.data.record import SourceSpec
from anyformer.data.sources.named_source import peek, source_of, usual_tokenizer
from anyformer.errors import DataError, SpecError
from anyformer.models.presets import preset_names
from anyformer.objectives.objective import Objective
from anyformer.training.recipes.compatibility import refuse_packed
from anyformer.training.recipes.recipe import Loaded, decode_recipe
from anyformer.training.recipes.toml_layers import DEFAULT, TomlLayers, of_preset, overridden, read
from anyformer.training.runs.run import TOKENIZER

FROM_DATA = "data"
STAND_IN = "stands in until the data are read"
MODELS = {"plain": "small", "pair": "small-encoder-decoder", "other": "small-encoder"}
EMBEDDED = {"decoder": "python_topics", "encoder": "python_topics", "encoder_decoder": "number_words"}


def draft(target: str | Path, overrides: Sequence[str] = ()) -> TomlLayers:
    """All that can be said before the data are read to the end."""
    target, peeked = str(target), _Peeked()
    if target.endswith(".toml") or target in preset_names():
        document = read(target, overrides)
        _refuse_unused(document.data)
    else:
        document = _from_data(target, overrides, peeked)
    document = _with_data(document)
    return _with_objective(document, peeked)


class _Peeked:
    """The contents of a source, read once."""

    def __init__(self) -> None:
        self._contents: list[tuple[SourceSpec, Contents]] = []

    def contents(self, source: SourceSpec) -> Contents:
        if not self._contents or self._contents[0][0] != source:
            self._contents[:] = [(source, peek(source))]
        return self._contents[0][1]


def outline(target: str | Path, overrides: Sequence[str] = ()) -> Loaded:
    """A recipe before its data are read: two classes stand for however many there will be."""
    document = read(target, overrides)
    if "data" in document.data:
        document = _with_data(document)
    if _counts_classes(document.data.get("objective")):
        document = TomlLayers.of({"objective": {"classes": 2}}, STAND_IN).on(document)
    return decode_recipe(document, Path(target).name.removesuffix(".toml"))


def settle(document: TomlLayers, prepared: Prepared, name: str) -> Loaded:
    """The recipe, now that the tokenizer and the labels are known."""
    known = _facts(document, prepared.words.size, prepared.contents)
    whole = TomlLayers.of(known, FROM_DATA).on(document)
    loaded = decode_recipe(whole, name)
    recipe = loaded.recipe
    assert recipe.objective is not None and recipe.data is not None
    _check_vocabulary(whole.data["model"], prepared.words.size)
    model = recipe.objective.adapt(recipe.model)
    refuse_packed(recipe.objective, model, prepared)
    return replace(loaded, recipe=replace(recipe, model=model))


def data_of(document: TomlLayers) -> DataSpec:
    """The part of the recipe that says what is read."""
    return decode(DataSpec, document.data["data"], "data")


def name_of(target: str | Path, document: TomlLayers) -> str:
    """What the run is called, if nobody says: the file, the preset, or the data."""
    given = document.data.get("name")
    stem = Path(str(target).split(",")[0]).name or str(target)
    return str(given) if isinstance(given, str) and given else stem.split(".")[0] or "run"


def _refuse_unused(data: Tree) -> None:
    if "model" not in data:
        raise SpecError("model: is missing. Name one: model.preset=small, or write it down under [model].")


def _from_data(target: str, overrides: Sequence[str], peeked: _Peeked) -> TomlLayers:
    given = {tuple(split(key)): value for key, value in map(parse_override, overrides)}
    told = {key[2]: value for key, value in given.items() if key[:2] == ("data", "source") and len(key) == 3}
    source = decode(SourceSpec, {"path": target, **told}) if "kind" in told else _named(target, told)
    document = TomlLayers.of({"data": {"source": source.to_dict()}}, f"target {target}")
    if not given.keys() & {("model",), ("model", "preset"), ("model", "kind")}:
        document = of_preset(MODELS[_form(peeked.contents(source))]).on(document)
    return overridden(document, overrides)


def _named(target: str, told: Mapping[str, Any]) -> SourceSpec:
    try:
        return source_of(target, told)
    except DataError as error:
        near = difflib.get_close_matches(target, preset_names(), 1)
        if near and not Path(target).exists():
            raise SpecError(
                f"no preset, file or built-in source is called {target!r}. Did you mean {near[0]!r}?"
            ) from None
        raise error


def _form(contents: Contents) -> str:
    if contents.plain:
        return "plain"
    return "pair" if contents.pair and not contents.classes else "other"


def _with_data(document: TomlLayers) -> TomlLayers:
    """The document with a source and a tokenizer."""
    data = document.data.get("data", {})
    if not isinstance(data, Mapping):
        return document
    given = data.get("source", {})
    usual = {} if not isinstance(given, Mapping) or "kind" in given else _usual_source(document, given)
    kind = usual.get("kind") or (given.get("kind") if isinstance(given, Mapping) else None)
    defaults = {"source": usual} if usual else {}
    if not isinstance(data.get("tokenizer"), Mapping) or "kind" not in data["tokenizer"]:
        defaults["tokenizer"] = _given_tokenizer(document) or usual_tokenizer(kind)
    return document.on(TomlLayers.of({"data": defaults}, DEFAULT)) if defaults else document


def _given_tokenizer(document: TomlLayers) -> Tree | None:
    """That of the run whose weights are taken over: they know words by its ids."""
    source = document.data.get("init_from")
    if not isinstance(source, str):
        return None
    return {"kind": "file", "path": str(Path(source) / TOKENIZER)}


def _usual_source(document: TomlLayers, given: Mapping[str, Any]) -> Tree:
    """What reads the file that is named, or text that needs no file."""
    if isinstance(given.get("path"), str):
        return source_of(given["path"], given).to_dict()
    return {"kind": EMBEDDED.get(str(document.data["model"].get("kind")), "python_topics")}


def _with_objective(document: TomlLayers, peeked: _Peeked) -> TomlLayers:
    """The document with an objective; where that has classes and nobody counts them, the data will."""
    given = document.data.get("objective", {})
    if not isinstance(given, Mapping):
        return document
    if "kind" in given:
        return document
    source = decode(SourceSpec, document.data["data"]["source"], "data.source")
    kind = _objective(str(document.data["model"].get("kind")), peeked.contents(source))
    return document.on(TomlLayers.of({"objective": {"kind": kind}}, DEFAULT))


def _objective(model: str, contents: Contents) -> str:
    """What suits a shape of model and a form of data."""
    if contents.tags:
        return "token_labels"
    if contents.choices:
        return "multiple_choice"
    if contents.pair and model != "encoder":
        return "seq2seq"
    if contents.pair:
        return "sentence_pairs" if contents.classes else "contrastive"
    if contents.classes:
        return "classify"
    if contents.numbers:
        return "regress"
    return {"decoder": "next_token", "encoder": "masked_words", "encoder_decoder": "span_corruption"}[model]


def _facts(document: TomlLayers, vocabulary: int, contents: Contents) -> Tree:
    """What the data decide, where the file or the command line did not: tables to be laid on top."""
    known: Tree = {}
    model = document.data["model"]
    stacks = ("encoder", "decoder") if model.get("kind") == "encoder_decoder" else ("",)
    for stack in stacks:
        key = f"model.{stack}.vocab" if stack else "model.vocab"
        if document.origin(key) == DEFAULT or document.origin(key).startswith("preset "):
            known = merge(known, {"model": {stack: {"vocab": vocabulary}} if stack else {"vocab": vocabulary}})
    classes = len(contents.tags) or len(contents.classes)
    if _counts_classes(document.data.get("objective")) and classes:
        known["objective"] = {"classes": classes}
    return known


def _counts_classes(objective: Any) -> bool:
    discover()
    kind = Objective.kinds.get(str(objective.get("kind"))) if isinstance(objective, Mapping) else None
    return kind is not None and "classes" not in objective and any(it.name == "classes" for it in fields(kind))


def provisional(document: TomlLayers) -> TomlLayers:
    """With stand-ins for what only the data know, so that a mistake is found before they are read."""
    known = _facts(document, 512, Contents(classes=("", "")))
    return TomlLayers.of(copy.deepcopy(known), FROM_DATA).on(document) if known else document


def _check_vocabulary(model: Tree, needed: int) -> None:
    stacks = [model[side] for side in ("encoder", "decoder")] if model.get("kind") == "encoder_decoder" else [model]
    for stack in stacks:
        if stack["vocab"] < needed:
            raise DataError(
                f"model.vocab={stack['vocab']}, but the tokenizer has {needed} tokens: ids outside the vocabulary. "
                f"Leave model.vocab out, or set it to {needed} or more."
            )
