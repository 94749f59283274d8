"""Completes the recipe of a target: a recipe file, a preset's name, a path to data, a model or a recipe.

Missing values follow from the others: the model from the form of the data, the objective from both, the vocabulary
from the tokenizer, the number of classes from the labels.
"""

import copy
import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from anyformer.core import ModelSpec, Position, Spec, decode, kind_of
from anyformer.core.fields import leaves
from anyformer.core.plain_data import Tree, assign, merge, parse_override, split
from anyformer.core.readable_numbers import counted
from anyformer.data.preparation.contents import Contents
from anyformer.data.preparation.pipeline import DataSpec, look, prepared_for
from anyformer.data.preparation.shards import Prepared
from anyformer.data.record import SourceSpec
from anyformer.data.sources.named_source import ContentsReader, is_data, source_of, usual_tokenizer
from anyformer.data.tokenizers.tokenizer import Tokenizer, TokenizerSpec
from anyformer.disk import RECIPE, TOKENIZER
from anyformer.errors import DataError, Problem, SpecError, at
from anyformer.evaluation.metrics.metric import check_metrics
from anyformer.objectives.objective import Objective
from anyformer.ops.devices import kind_of_device
from anyformer.training.recipes.defaults import DERIVED, WHOLE_MODEL, rule_for
from anyformer.training.recipes.fine_tuning import INIT_FROM, fine_tuning, starting_point, with_chat_template
from anyformer.training.recipes.python_values import PYTHON, Target
from anyformer.training.recipes.recipe import Loaded, Recipe, decode_recipe
from anyformer.training.recipes.toml_layers import DEFAULT, TomlLayers, of_preset, overridden, preset_names, read
from anyformer.training.runs.checkpoint import run_recipe
from anyformer.training.runs.starting import StartingPoint

FROM_DATA = "data"
_ONE_DOCUMENT = 'or one document a row: data.packing = "bucket"'
_ONE_PAIR = 'or one pair a row: data.packing = "bucket"'
MAX_NAME = 128
MIN_WORKERS, WORKERS_PER_CORE = 16, 4
STAND_IN = "placeholder until the data are read"
MODELS = {"text": "small", "chat": "small", "pair": "small-encoder-decoder"}
"""Preset for a form of data; `small-encoder` for every other form."""
SHAPES = {"decoder": "small", "encoder": "small-encoder", "encoder_decoder": "small-encoder-decoder"}
EMBEDDED = {"decoder": "python_topics", "encoder": "python_topics", "encoder_decoder": "number_words"}


def draft(target: Target, overrides: Sequence[str] = (), values: TomlLayers | None = None) -> TomlLayers:
    """The recipe of a target as far as it is known before the data are read.

    `values`: sections given as Python values (see `layers_of`); they replace those of the target, and overrides are
    laid on top of both.
    """
    values, contents = values or TomlLayers.of({}, PYTHON), ContentsReader()
    if isinstance(target, Recipe):
        document = values.over(TomlLayers.of(target.to_dict(), PYTHON))
    elif isinstance(target, ModelSpec):
        document = values.over(TomlLayers.of({"model": target.to_dict()}, PYTHON))
    elif str(target).endswith(".toml") or str(target) in preset_names():
        document = values.over(read(str(target)))
        if "model" not in overridden(document, overrides).data:
            raise SpecError("model: is missing. Name one: model.preset=small, or write it down under [model].")
    else:
        source = target if isinstance(target, SourceSpec) else str(target)
        document = _from_data(source, overrides, values, contents)
    document = overridden(document, overrides)
    model = document.data.get("model")
    kind = model.get("kind") if isinstance(model, Mapping) else None
    if isinstance(model, Mapping) and kind in SHAPES and not {"stack", "encoder", "decoder"} & model.keys():
        raise SpecError(
            f"model.kind={kind}: is a shape without layers. Choose a whole model: model.preset={SHAPES[kind]} "
            f"(all of them: anyformer presets), then change single keys of it."
        )
    if isinstance(kind, str):
        with at("model.kind"):
            kind_of(ModelSpec, kind)
    else:
        decode(ModelSpec, model, "model")  # raises: a model without a kind
    return _with_objective(_with_data(document), contents)


def complete(recipe: Recipe, cache: Path | None = None) -> tuple[Recipe, Prepared]:
    """A recipe with everything that follows from its data filled in, and these data, prepared."""
    document = draft(recipe)
    check_model(decode_recipe(provisional(document), "recipe").recipe)
    prepared = prepared_for(data_of(document), cache)
    return settle(document, prepared, "recipe").recipe, prepared


def outline(target: str | Path, overrides: Sequence[str] = ()) -> Loaded:
    """A recipe before its data are read: of a preset, a recipe file, a run folder or a path to data. Two classes, and
    the expected size of the vocabulary, are placeholders for the real numbers."""
    if (Path(target) / RECIPE).is_file():
        target = Path(target) / RECIPE
    if not str(target).endswith(".toml") and str(target) not in preset_names() and is_data(str(target)):
        document = draft(target, overrides)
        return decode_recipe(provisional(document), name_of(target, document))
    document = read(target, overrides)
    if "data" in document.data:
        document = _with_data(document)
        with suppress(
            SpecError, KeyError
        ):  # a mistake is reported together with all others, when the recipe is decoded
            vocabulary = _facts(document, _likely_vocabulary(document), Contents())
            document = TomlLayers.of(vocabulary, STAND_IN).on(document)
    if _lacks(document.data.get("objective"), "classes"):
        document = TomlLayers.of({"objective": {"classes": 2}}, STAND_IN).on(document)
    return decode_recipe(document, Path(target).name.removesuffix(".toml"))


def with_vocabulary(loaded: Loaded) -> Loaded:
    """The recipe with the vocabulary that its tokenizer learns from its data, if a placeholder stands for it."""
    recipe = loaded.recipe
    paths = [f"model.{stack}.vocab" if stack else "model.vocab" for stack in recipe.model.stack_paths]
    placeholders = [path for path in paths if loaded.origins.get(path) in (STAND_IN, FROM_DATA)]
    if recipe.data is None or not placeholders:
        return loaded
    size = recipe.data.tokenizer.train(look(recipe.data).sample).words.size
    for path in placeholders:
        recipe = recipe.with_(path, size)
    return replace(loaded, recipe=recipe, origins={**loaded.origins, **dict.fromkeys(placeholders, FROM_DATA)})


def settle(document: TomlLayers, prepared: Prepared, name: str) -> Loaded:
    """The complete recipe, with the vocabulary and the classes of the prepared data."""
    size = prepared.words.size
    loaded = decode_recipe(TomlLayers.of(_facts(document, size, prepared.contents), FROM_DATA).on(document), name)
    recipe = loaded.recipe
    assert recipe.objective is not None and recipe.data is not None
    refuse_fixed_weights(recipe.model)
    for stack in recipe.model.stacks.values():
        if stack.vocabulary < size:
            raise DataError(
                f"model.vocab={stack.vocabulary}, but the tokenizer has {size} tokens: ids outside the vocabulary. "
                f"Leave model.vocab out, or set it to {size} or more."
            )
    model = _adapted(recipe)
    refuse_other_tokenizer(recipe.objective, prepared)
    refuse_packed(recipe.objective, model, prepared)
    return replace(loaded, recipe=replace(recipe, model=model))


def _adapted(recipe: Recipe) -> ModelSpec:
    """The model with the head that its objective needs, and with the parameters that its tuning adds."""
    assert recipe.objective is not None
    model = recipe.objective.adapt(recipe.model)
    return recipe.tune.adapt(model) if recipe.tune else model


def data_of(document: TomlLayers) -> DataSpec:
    """The data section of a recipe."""
    return decode(DataSpec, document.data["data"], "data")


def refuse_fixed_weights(model: ModelSpec) -> None:
    """Raises SpecError if the weights of a model cannot be trained."""
    if not model.learns:
        text = f"the weights of a {model.kind} model cannot be trained. Train the run that it was made from."
        raise SpecError(problems=[Problem("model.kind", text)])


def check_model(recipe: Recipe) -> None:
    """Builds the model without memory, so that one that cannot be built is refused before the data are read."""
    assert recipe.objective is not None and recipe.data is not None
    refuse_fixed_weights(recipe.model)
    check_metrics(recipe.objective)
    spec, context = _adapted(recipe), recipe.data.context
    with at("model"):
        model = spec.build(device="meta")
    for name, module in model.named_modules():
        if isinstance(module, Position) and module.longest is not None and module.longest < context:
            key = f"model.{name.split('.')[0]}.max_len" if spec.needs_source else "model.max_len"
            text = f"{module.longest} positions are fewer than data.context={context}."
            raise SpecError(problems=[Problem(key, f"{text} Set it to {context}, or the context to less.")])
    most = max(MIN_WORKERS, WORKERS_PER_CORE * (os.cpu_count() or 1))
    if recipe.train.workers > most:
        text = (
            f"must be at most {most}: each is a process, and this machine has {counted(os.cpu_count() or 1, 'cores')}"
        )
        raise SpecError(problems=[Problem("train.workers", f"{text}; got {recipe.train.workers:,}.")])


def name_of(target: Target, document: TomlLayers) -> str:
    """The name of a run: set in the recipe, or else that of the file, the preset or the data."""
    name = document.data.get("name")
    if isinstance(name, str) and name:
        if name.strip(". ") == "" or set(name) & set("/\\") or not name.isprintable() or len(name.encode()) > MAX_NAME:
            shown = name if len(name) <= MAX_NAME else f"{name[:40]}..."
            raise SpecError(
                f"name: {shown!r} must be one folder name: no / or \\, no control characters, at most {MAX_NAME} "
                f"bytes. To train into another folder: out=FOLDER (--out FOLDER)"
            )
        return name
    if isinstance(target, Spec):
        source = document.data["data"]["source"]
        target = str(source.get("path", source["kind"]))
    stem = Path(str(target).split(",")[0]).name or str(target)
    return stem.split(".")[0] or "run"


def _from_data(
    target: str | SourceSpec, overrides: Sequence[str], values: TomlLayers, contents: ContentsReader
) -> TomlLayers:
    """The recipe of a path to data, or of a source; without a model, the preset that suits the form of the data."""
    name = target.kind if isinstance(target, SourceSpec) else target
    if "data" in values.data:
        raise SpecError(f"data: {name} is data already. Give a model, a preset or a recipe as the target instead.")
    keys = {tuple(split(key)): value for key, value in map(parse_override, overrides)}
    options = {key[2]: value for key, value in keys.items() if key[:2] == ("data", "source") and len(key) == 3}
    if isinstance(target, SourceSpec):
        source = target
    else:
        source = decode(SourceSpec, {"path": target, **options}) if "kind" in options else _named(target, options)
    document = values.over(TomlLayers.of({"data": {"source": source.to_dict()}}, f"target {name}"))
    choices = {tuple(split(key)): value for key, value in leaves(values.data) if key} | keys
    with suppress(SpecError):  # a mistake in the options is reported together with all others
        source = decode(SourceSpec, {**source.to_dict(), **options})
    return document.on(_derived(source, choices, contents))


def _derived(source: SourceSpec, choices: Mapping[tuple[str, ...], Any], contents: ContentsReader) -> TomlLayers:
    """The values that no one names: those of the model whose weights are used, or derived from the data and the kind of
    device, or the preset for the form of data where no rule is known."""
    if ("init_from",) in choices and (start := starting_point(choices)):
        return fine_tuning(start, contents.extent(start.laid_out(source)), choices)
    own_task = choices.keys() & {("objective", "kind"), ("objective", "teacher"), ("init_from",)}
    if source.natural and not own_task:
        extent = contents.extent(source)
        rule = rule_for(extent, kind_of_device(str(choices.get(("train", "device"), "auto"))))
        if rule is not None:
            return rule.layers(extent, choices)
    if choices.keys() & WHOLE_MODEL:
        return TomlLayers.of({}, DEFAULT)
    return of_preset(MODELS.get(contents(source).form, "small-encoder"))


def _named(target: str, options: Mapping[str, Any]) -> SourceSpec:
    try:
        return source_of(target, options)
    except DataError as error:
        near = difflib.get_close_matches(target, preset_names(), 1)
        if not near or Path(target).exists():
            raise error
        text = f"no preset, file or built-in source is called {target!r}."
        raise SpecError(f"{text} Did you mean {near[0]!r}?") from None


def _with_data(document: TomlLayers) -> TomlLayers:
    """The recipe with a source (built-in, if there is no path) and a tokenizer."""
    data = document.data.get("data", {})
    if not isinstance(data, Mapping):
        return document
    source, defaults, kind = data.get("source", {}), dict[str, Tree](), None
    if isinstance(source, Mapping):
        if "kind" not in source:
            usual = {"kind": EMBEDDED.get(str(document.data["model"].get("kind")), "python_topics")}
            path = source.get("path")
            defaults["source"] = source_of(path, source).to_dict() if isinstance(path, str) else usual
        kind = {**source, **defaults.get("source", {})}["kind"]
    if not isinstance(data.get("tokenizer"), Mapping) or "kind" not in data["tokenizer"]:
        defaults["tokenizer"] = _other_tokenizer(document) or usual_tokenizer(kind)
    document = document.on(TomlLayers.of({"data": defaults}, DEFAULT)) if defaults else document
    return with_chat_template(document) if "init_from" in document.data else document


def _other_tokenizer(document: TomlLayers) -> Tree | None:
    """The tokenizer of the run whose weights are used: of `init_from`, or of a teacher."""
    objective = document.data.get("objective")
    teacher = objective.get("teacher") if isinstance(objective, Mapping) else None
    teacher = teacher[0] if isinstance(teacher, list | tuple) and teacher else teacher  # all have the same
    run = document.data.get("init_from") or teacher
    if run != teacher and isinstance(run, str) and Path(run).exists():
        return StartingPoint.open(run).tokenizer()
    # also of a run that does not exist yet: its recipe can be checked before
    return {"kind": "file", "path": str(Path(run) / TOKENIZER)} if isinstance(run, str) else None


def _with_objective(document: TomlLayers, contents: ContentsReader) -> TomlLayers:
    """The recipe with the objective that declares itself the default for the kind of model and the form of data."""
    section = document.data.get("objective", {})
    if not isinstance(section, Mapping) or "kind" in section:
        return document
    form = contents(decode(SourceSpec, document.data["data"]["source"], "data.source")).form
    Objective.load_kinds()
    model, kinds = str(document.data["model"].get("kind")), Objective.kinds.values()
    fitting = [cls.kind for cls in kinds if issubclass(cls, Objective) and model in cls.default_for.get(form, ())]
    if not fitting:
        raise SpecError(f"objective: none is the default for a {model} and data of the form {form!r}. Name one.")
    return document.on(TomlLayers.of({"objective": {"kind": fitting[0]}}, DEFAULT))


def _facts(document: TomlLayers, vocabulary: int, contents: Contents) -> Tree:
    """Values that follow from the data, for keys that neither a file nor the command line sets."""
    known, model = Tree(), document.data["model"]
    for stack in kind_of(ModelSpec, str(model.get("kind"))).stack_paths:
        key = f"model.{stack}.vocab" if stack else "model.vocab"
        if document.origin(key) == DEFAULT or document.origin(key).startswith(("preset ", DERIVED)):
            known = merge(known, {"model": {stack: {"vocab": vocabulary}} if stack else {"vocab": vocabulary}})
    objective, classes = document.data.get("objective"), len(contents.tags) or len(contents.classes)
    if classes and _lacks(objective, "classes"):
        known["objective"] = {"classes": classes}
    elif contents.numbers and _lacks(objective, "mean", "deviation"):
        one = {"classes": 1} if _lacks(objective, "classes") else {}
        known["objective"] = {"mean": contents.mean, "deviation": contents.deviation, **one}
    for key, origin in document.origins.items() if classes else ():
        if key.endswith(".classes") and origin.startswith(INIT_FROM):  # a head for the classes of other data
            assign(known, key, classes)
    return known


def _lacks(objective: Any, *names: str) -> bool:
    """True if the objective has fields of these names, and the recipe sets none of them."""
    if not isinstance(objective, Mapping) or any(name in objective for name in names):
        return False
    Objective.load_kinds()
    kind = Objective.kinds.get(str(objective.get("kind")))
    return kind is not None and {*names} <= {field.name for field in fields(kind)}


def provisional(document: TomlLayers) -> TomlLayers:
    """The recipe with placeholders for values that depend on the data, to find mistakes before the data are read."""
    known = _facts(document, _likely_vocabulary(document), Contents(classes=("", "")))
    return TomlLayers.of(copy.deepcopy(known), FROM_DATA).on(document) if known else document


def _likely_vocabulary(document: TomlLayers) -> int:
    with suppress(SpecError, KeyError):  # a mistake is reported together with all others, when the recipe is decoded
        return decode(TokenizerSpec, document.data["data"]["tokenizer"]).likely_size
    return TokenizerSpec().likely_size


def refuse_other_tokenizer(objective: Objective, prepared: Prepared) -> None:
    """Raises SpecError if a model of another run has other ids for words than the prepared data."""
    for name, folder in objective.pretrained.items():
        if Tokenizer.load(Path(folder) / TOKENIZER).fingerprint() != prepared.tokenizer.fingerprint():
            raise SpecError(
                f"objective.{name}: {folder} has another tokenizer than these data. Use its own: leave data.tokenizer "
                f"out, or set data.tokenizer.kind=file and data.tokenizer.path={Path(folder) / TOKENIZER}."
            )


def refuse_packed(objective: Objective, model: ModelSpec, prepared: Prepared) -> None:
    """Raises SpecError if rows hold several texts and the objective, a model or a part cannot separate them."""
    pretrained = (run_recipe(Path(folder)).model for folder in objective.pretrained.values())
    models = (model, *objective.companions(model).values(), *pretrained)
    where = f"data.packing={prepared.packing.kind}"
    if prepared.packed_pairs:
        for each in objective.parts:
            if not each.packed_pairs:
                raise SpecError(f'{where}: {each.kind} reads no packed pairs. Use "seq2seq", {_ONE_PAIR}.')
        for one in models:
            if not one.needs_source:
                text = f"{where}: a {one.kind} reads a pair in one row, which holds nothing else."
                raise SpecError(f"{text} Use an encoder_decoder, {_ONE_PAIR}.")
            _refuse_parts(one, ("packing", "sources"), where, _ONE_PAIR)
    elif prepared.packing.marks_documents and not all(each.relays for each in objective.parts):
        for one in models:
            if not one.needs_source:  # else a row is a source and a target, and nothing more
                _refuse_parts(one, ("packing",), where, _ONE_DOCUMENT)


def _refuse_parts(model: ModelSpec, limits: Iterable[str], where: str, instead: str) -> None:
    """Refuses parts with one of these limits: packing (mixes the documents of a row), sources (mixes their sources)."""
    for path, spec in model.walk():
        if reason := next((spec.limits[limit] for limit in limits if limit in spec.limits), None):
            raise SpecError(f"{where}: {path}: {spec.kind}: {reason}. Use another part, {instead}.")
