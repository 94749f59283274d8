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
from typing import Any, NamedTuple

from anyformer.core import ModelSpec, decode
from anyformer.core.plain_data import assign
from anyformer.core.spec import plain
from anyformer.errors import Problem, SpecError
from anyformer.interop import families
from anyformer.interop.mapping import REQUIRED, SAME, Entry, Key
from anyformer.interop.normal_form import LAYER, functional, look_up, normal_form

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
NUM_LABELS = "num_labels"
"""Number of classes, which a config states by their names."""
HAS = "has "
"""Prefix of a fact about the weights: whether there is a tensor of this name."""
LISTS = ("layer_types", "time_step_limit")
"""Keys that hold a list, which transformers fills in if they are missing."""
CODE = ("auto_map", "custom_pipelines", "trust_remote_code")


class Relative(NamedTuple):
    """The model of a family that is most like a spec."""

    config: dict[str, Any]
    spec: ModelSpec
    """The spec that an import of the config gives."""
    differences: list[Problem]
    """The fields in which both differ; none if they compute the same."""


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
    """Keys of this family that do not change what a model computes."""
    unused: tuple[str, ...] = ()
    """Patterns of tensors that take no part in what the model computes."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """Tensors that must be equal to another one if they are stored."""

    derived: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda config: {}
    """Keys that follow from the others of a config, for configs that are written."""
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
                if not path.startswith("?") or look_up(data, path[1:]) is not None:
                    assign(data, path.removeprefix("?"), value)
        if problems:
            raise SpecError(problems=problems)
        return decode(ModelSpec, data)

    def relative(self, spec: ModelSpec) -> "Relative":
        """The model of this family that is most like a spec, and the fields in which they differ."""
        facts = {name: values[0] for name, values in self.fixed.items() if name not in LISTS}
        # the values of the template stand where this spec has nothing to read a value from
        facts |= {**self._facts(self.template), **self._facts(spec)}
        present = [name.removeprefix(HAS) for name, value in facts.items() if name.startswith(HAS) and value]
        config = _nested({name: value for name, value in facts.items() if not name.startswith(HAS)})
        config = {"model_type": self.model_types[0], **self.derived(config), **config}
        try:
            nearest = self.spec(config, present)
            refused = list[Problem]()
        except SpecError as error:  # the template's values and those of the spec do not fit together
            nearest, refused = self.template, list(error.problems)
        differences = self._differences(functional(normal_form(nearest)), functional(normal_form(spec)))
        return Relative(config, nearest, differences or refused)

    def _facts(self, spec: ModelSpec) -> dict[str, Any]:
        """The values of all keys that a spec has a counterpart for."""
        facts, brief, full = dict[str, Any](), normal_form(spec, sizes=False), normal_form(spec)
        for key in self.keys:
            data = brief if key.default is None else full  # a size that may be left out stays so
            values = (look_up(data, path.removeprefix("?")) for path in key.paths)
            value = next((value for value in values if value is not None), None)
            optional = all(path.startswith("?") for path in key.paths)
            if value is None and (optional or (key.default is not None and key.convert is SAME)):
                continue  # a part that the spec does not have
            try:
                converted = key.convert.theirs(value)
            except (SpecError, TypeError, KeyError, AttributeError):
                continue
            for name, one in zip(key.names, (converted,) if len(key.names) == 1 else converted, strict=True):
                facts.setdefault(name, facts[key.same_as] if one is None and key.same_as in facts else one)
        return facts

    def _differences(self, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[Problem]:
        """A part of another kind is one difference. A tensor that only they have is none if it can be zero, and neither
        is a longest length that they do not limit."""
        settable = {path.removeprefix("?") for key in self.keys for path in key.paths}
        differences, replaced = list[Problem](), list[str]()
        paths = [*ours, *(path for path in theirs if path not in ours)]
        for path in sorted(paths, key=lambda path: not path.endswith("kind")):  # kinds first: the rest follows
            mine, other = ours.get(path), theirs.get(path)
            stack, _, inner = path.partition("stack.blocks.")
            if inner and inner.partition(".")[0] != LAYER and f"{stack}stack.blocks" not in replaced:
                replaced.append(f"{stack}stack.blocks")
                differences.append(Problem(replaced[-1], "several kinds of layers here, one kind there."))
            table, _, name = path.rpartition(".")
            unlimited = name == "max_len" and path not in settable
            inside = any(path.startswith(f"{place}.") for place in replaced)
            if mine == other or unlimited or inside or can_widen(name, mine, other):
                continue
            if name == "kind":
                replaced.append(table)
            differences.append(
                Problem(table if name == "kind" else path, f"{_shown(mine)} here, {_shown(other)} there.")
            )
        return differences

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
            if name in used or (top in HARMLESS and name not in self.fixed) or top in self.harmless:
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


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(value)


def can_widen(name: str, ours: Any, theirs: Any) -> bool:
    """True if a field may differ: the tensors that only they have can be zero, or the gain of a norm one, and channels
    can be put into another order."""
    if name in ("bias", "gain"):
        return ours is False and theirs is True
    return (name == "types" and ours == 0) or (name, ours, theirs) == ("layout", "interleaved", "halves")


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
    names, labels = facts.get("architectures"), config.get("id2label")
    if isinstance(names, list) and names:
        facts["architectures"] = names[0]
    return {NUM_LABELS: len(labels), **facts} if isinstance(labels, dict) else facts


def _nested(facts: Mapping[str, Any]) -> dict[str, Any]:
    config = dict[str, Any]()
    for name, value in facts.items():
        if name == NUM_LABELS:
            config["id2label"] = {str(index): f"LABEL_{index}" for index in range(value)}
        else:
            assign(config, name, [value] if name == "architectures" else value)
    return config
