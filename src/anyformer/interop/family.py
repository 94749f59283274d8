"""A family of models of Hugging Face: one table for its config and one for its tensors, each read in both directions.

A key of a config is used, or has the only value that is supported, or is known not to change what the model computes.
Any other key is refused by name.
"""

import pkgutil
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from typing import Any

from anyformer.core import ModelSpec, decode
from anyformer.core.paths import assign, split
from anyformer.core.spec import plain
from anyformer.errors import Problem, SpecError
from anyformer.interop import families
from anyformer.interop.mapping import REQUIRED, Entry, Key

HARMLESS = (
    "_attn_implementation_autoset", "_commit_hash", "_name_or_path", "attn_implementation", "bad_words_ids",
    "bos_token_id", "chunk_size_feed_forward", "classifier_dropout", "decoder_start_token_id", "directionality",
    "diversity_penalty", "do_sample", "dtype", "early_stopping", "eos_token_id", "eos_token_ids",
    "exponential_decay_length_penalty",
    "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "gradient_checkpointing", "id2label",
    "init_std", "initializer_factor", "initializer_range", "label2id", "length_penalty", "max_length", "min_length",
    "model_type", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_labels", "num_return_sequences",
    "output_attentions", "output_hidden_states", "output_past", "output_scores", "pad_token_id", "prefix",
    "problem_type", "remove_invalid_values", "repetition_penalty", "return_dict", "return_dict_in_generate",
    "sep_token_id", "suppress_tokens", "task_specific_params", "temperature", "tf_legacy_loss", "tokenizer_class",
    "top_k", "top_p", "torch_dtype", "torchscript", "transformers_version", "typical_p", "use_bfloat16",
    "use_cache",
)  # fmt: skip
"""Keys that do not change what a model computes: training, sampling, labels, versions."""
FIXED: Mapping[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "pruned_heads": ({}, None),
    "tie_encoder_decoder": (False,),
}
HAS = "has "
"""Prefix of a fact about the weights: whether there is a tensor of this name."""
LISTS = ("layer_types", "time_step_limit")
"""Keys that hold a list, which transformers fills in if they are missing."""
CODE = ("auto_map", "custom_pipelines", "trust_remote_code")


@dataclass(frozen=True)
class Family:
    """How the models of a `model_type` are written in this package."""

    model_types: tuple[str, ...]
    template: ModelSpec
    """A model of this family; the keys set its fields."""
    keys: tuple[Key, ...]
    tensors: Callable[[Any], Iterable[Entry]]
    """The tensors of a model with this spec."""
    base: str = ""
    """Prefix of the tensors of the body, which a folder without a head leaves out."""
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Keys for which only these values are supported. Of a list, each element must be one of them."""
    harmless: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    """Patterns of tensors that take no part in what the model computes."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """Tensors that must be equal to another one if they are stored."""

    fills: bool = True
    """False if its scores of words were not trained on texts with masks, so that it cannot fill them."""

    def spec(self, config: Mapping[str, Any], tensors: Collection[str]) -> ModelSpec:
        """The model that a config describes; SpecError lists the keys that cannot be used."""
        facts = _flat(config)
        problems = [*self._refusals(facts)]
        data = self.template.to_dict()
        for key in self.keys:
            name = " and ".join(name for name in key.names if not name.startswith(HAS))
            try:
                values = tuple(self._value(name, key, facts, tensors) for name in key.names)
                value = plain(key.convert.ours(values[0] if len(values) == 1 else values))
            except SpecError as error:
                problems += error.under(name).problems
                continue
            except (TypeError, ValueError):  # such as a list in place of a number
                problems.append(Problem(name, f"cannot be {facts.get(name)!r}."))
                continue
            for path in key.paths:
                if not path.startswith("?") or _look_up(data, path[1:]) is not None:
                    assign(data, path.removeprefix("?"), value)
        if problems:
            raise SpecError(problems=problems)
        return decode(ModelSpec, data)

    def config(self, spec: ModelSpec) -> dict[str, Any]:
        """The config of a spec; SpecError names the fields that this family has no counterpart for."""
        data = spec.to_dict()
        config = {name: values[0] for name, values in self.fixed.items() if name not in LISTS}
        for key in self.keys:
            path = next((path for path in key.paths if not path.startswith("?")), None)
            if path is None:
                continue
            value = key.convert.theirs(_look_up(data, path))
            for name, one in zip(key.names, (value,) if len(key.names) == 1 else value, strict=True):
                if name in config and config[name] != one:
                    raise SpecError(f"{name} would have to be {config[name]!r} and {one!r}.")
                config[name] = config[key.same_as] if one is None and key.same_as in config else one
        present = [name.removeprefix(HAS) for name, value in config.items() if name.startswith(HAS) and value]
        facts = {name: value for name, value in config.items() if not name.startswith(HAS)}
        if differences := self.spec(facts, present).diff(spec):
            listed = [Problem(name, f"has no counterpart: {mine!r}.") for name, (_, mine) in differences.items()]
            raise SpecError(problems=listed)
        return {"model_type": self.model_types[0], **_nested(facts)}

    def _value(self, name: str, key: Key, facts: Mapping[str, Any], tensors: Collection[str]) -> Any:
        if name.startswith(HAS):
            return name.removeprefix(HAS) in tensors or self.base + name.removeprefix(HAS) in tensors
        value = facts.get(name)
        if value is None and key.same_as is not None and key.same_as in facts:
            return facts[key.same_as]
        if name in facts:
            return value
        default = key.default[key.names.index(name)] if len(key.names) > 1 and key.default else key.default
        if default in (REQUIRED, ()):
            raise SpecError("is missing.")
        return default

    def _refusals(self, facts: Mapping[str, Any]) -> Iterable[Problem]:
        used = {name for key in self.keys for name in (*key.names, key.same_as)}
        fixed = {**FIXED, **self.fixed}
        for name, value in facts.items():
            top = name.partition(".")[0]
            if name in used or top in HARMLESS or top in self.harmless:
                continue
            if top in CODE:
                yield Problem(name, "names code to be run, and nothing from a folder is executed. Remove the key.")
            elif name not in fixed:
                yield Problem(name, "is not a known key of this model_type, so it may change what the model computes.")
            elif any(one not in fixed[name] for one in (value if isinstance(value, list) else [value])):
                allowed = " or ".join(map(repr, fixed[name]))
                yield Problem(name, f"must be {allowed}, got {value!r}.")

    def is_unused(self, tensor: str) -> bool:
        """True if a tensor takes no part in what the model computes."""
        return any(fnmatchcase(tensor, pattern) for pattern in self.unused)


@cache
def known_families() -> Mapping[str, Family]:
    """`model_type` -> its family."""
    modules = [import_module(f"{families.__name__}.{file.name}") for file in pkgutil.iter_modules(families.__path__)]
    return {name: module.FAMILY for module in modules for name in module.FAMILY.model_types}


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a config, those of tables inside it with a dot; of the architectures, the first."""
    facts = dict[str, Any]()
    for name, value in config.items():
        inside = value.items() if isinstance(value, dict) else ()
        facts |= {f"{name}.{inner}": one for inner, one in inside} if inside else {name: value}
    names = facts.get("architectures")
    return facts | {"architectures": names[0]} if isinstance(names, list) and names else facts


def _nested(facts: Mapping[str, Any]) -> dict[str, Any]:
    config = dict[str, Any]()
    for name, value in facts.items():
        assign(config, name, [value] if name == "architectures" else value)
    return config


def _look_up(data: Any, path: str) -> Any:
    """The value at a dotted path of plain data; None if there is none."""
    for name in split(path):
        if isinstance(data, Mapping):
            data = data.get(name)
        elif isinstance(data, list) and name.isdigit() and int(name) < len(data):
            data = data[int(name)]
        else:
            return None
    return data
