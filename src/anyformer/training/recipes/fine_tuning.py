"""What `anyformer train DATA init_from=SOURCE` chooses where the user chooses nothing: the model and the tokenizer of
the source, and a short run at a low rate.

rate = 0.04 / width: 5.2e-5 for a model as wide as BERT (768), whose paper takes 2e-5 to 5e-5 (arXiv 1810.04805, A.3),
and higher for narrower ones. The default rates of training are for random weights, and would destroy pre-trained ones.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyformer.core import decode
from anyformer.core.plain_data import Tree
from anyformer.data.record import SourceSpec
from anyformer.data.sources.named_source import Extent
from anyformer.data.tokenizers.tokenizer import TokenizerSpec
from anyformer.errors import SpecError
from anyformer.optim.tunings.tuning_spec import TuningSpec
from anyformer.training.recipes.defaults import DERIVED, FINE_TUNING, WHOLE_MODEL, context_for, without_user_choices
from anyformer.training.recipes.toml_layers import TomlLayers
from anyformer.training.runs.starting import StartingPoint

RATE_TIMES_WIDTH = 0.04
SAMPLE = "The quick brown fox jumps over the lazy dog, and nobody in the village was surprised by that. "
"""A text that shows about how many characters a token of the source has."""
USUAL_CHARACTERS = 4.0
EPOCHS, MOST_TOKENS = 3, 4_000_000
LONGEST, LEAST_STEPS, EVALUATIONS = 512, 50, 10
INIT_FROM = "init_from "
"""Beginning of the origin of a value that a run takes from the model that it starts from; its path follows."""


def starting_point(choices: Mapping[tuple[str, ...], Any]) -> StartingPoint | None:
    """The weights that the keys of a user name; None if they name no weights, or another model for these weights."""
    path = choices.get(("init_from",))
    if not isinstance(path, str) or WHOLE_MODEL & choices.keys():
        return None
    return StartingPoint.open(path)


def fine_tuning(start: StartingPoint, extent: Extent, choices: Mapping[tuple[str, ...], Any]) -> TomlLayers:
    """The recipe of a run on data of this extent. `choices`: the keys that the user sets, with their values."""
    model = TomlLayers.of({"model": start.model.to_dict()}, f"{INIT_FROM}{start.path}")
    characters = _characters(start, choices)
    longest = min(LONGEST, *(stack.max_len for stack in start.model.stacks.values()))
    context = context_for(extent, longest, characters)
    batch_tokens = max(2048, 8 * context)
    tokens = extent.characters / characters
    if not extent.contents.plain:  # texts that are longer lose their end
        tokens = min(tokens, extent.records * context)
    steps = max(LEAST_STEPS, round(min(MOST_TOKENS, EPOCHS * tokens) / batch_tokens))
    every = max(1, steps // EVALUATIONS)
    tree: Tree = {
        "data": {"context": context},
        "train": {"batch_tokens": batch_tokens, "steps": steps},
        "optimizer": {"kind": "adamw", "lr": _rate(start, choices), "weight_decay": 0.01, "beta2": 0.999},
        "schedule": {"kind": "linear", "warmup": 0.1},
        "evaluate": {"every": every, "batches": 100},
        "checkpoint": {"every": max(every, 100)},
    }
    if extent.contents.chat and (template := start.chat_template()):
        tree["data"]["source"] = {"template": template}
    return TomlLayers.of(without_user_choices(tree, choices), f"{DERIVED}{FINE_TUNING}").on(model)


def with_chat_template(document: TomlLayers) -> TomlLayers:
    """A recipe with the chat template of the weights that it starts from, if it reads conversations and names none."""
    path, source = document.data.get("init_from"), document.data["data"].get("source")
    if not isinstance(path, str) or not Path(path).exists() or not isinstance(source, Mapping):
        return document
    try:
        spec = decode(SourceSpec, source)
    except SpecError:  # reported together with all other mistakes, when the recipe is decoded
        return document
    if spec.chat_template is None or "template" in source:
        return document
    template = StartingPoint.open(path).chat_template()
    tree: Tree = {"data": {"source": {"template": template}}}
    return document.on(TomlLayers.of(tree, f"{INIT_FROM}{path}")) if template else document


def _characters(start: StartingPoint, choices: Mapping[tuple[str, ...], Any]) -> float:
    """Characters of a token, about."""
    if any(key[:2] == ("data", "tokenizer") for key in choices):
        return USUAL_CHARACTERS
    tokenizer = decode(TokenizerSpec, start.tokenizer()).train(())
    return len(SAMPLE) / max(1, len(tokenizer.encode(SAMPLE)))


def _rate(start: StartingPoint, choices: Mapping[tuple[str, ...], Any]) -> float:
    width = max(stack.dim for stack in start.model.stacks.values())
    rate = float(f"{RATE_TIMES_WIDTH / width:.2g}")
    kind = choices.get(("tune", "kind"), choices.get(("tune",)))
    try:
        return decode(TuningSpec, kind).usual_rate(rate) if isinstance(kind, str) else rate
    except SpecError:  # reported together with all other mistakes, when the recipe is decoded
        return rate
