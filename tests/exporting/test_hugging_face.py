"""Every preset, and models with other heads: transformers computes the same from the export, or a part is named."""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.equality.comparing import lengths_mask, randomise
from tests.exporting.table import LONGEST, refused, rows, small
from tests.interop.test_families import outputs

from anyformer.core import Model, ModelSpec
from anyformer.errors import SpecError
from anyformer.interop.counterpart import Counterpart, counterpart
from anyformer.interop.folder import PretrainedFolder
from anyformer.interop.sentence_modules import body_of
from anyformer.interop.writing import write_model
from anyformer.parts.heads.classifier import Classifier
from anyformer.parts.heads.hidden import Hidden
from anyformer.parts.heads.masked_words import MaskedWordsHead
from anyformer.parts.heads.pooled import Pooled
from anyformer.parts.heads.tied import Tied
from anyformer.parts.heads.token_classifier import TokenClassifier
from anyformer.parts.heads.untied import Untied
from anyformer.parts.pools.first import First
from anyformer.parts.pools.mean import Mean
from anyformer.training.recipes.toml_layers import preset_names

BATCHES = ([1], [LONGEST - 1, 3, 7])


def one_of_each_fast(names: Sequence[str]) -> list[Any]:
    """Presets as parameters: the first with a cell of the table is fast, others with the same cell are slow."""
    fast = {rows()[name].hf: name for name in reversed(names)}.values()
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in names]


WORKS = [name for name in preset_names() if not refused(rows()[name].hf)]
REFUSED = sorted(set(preset_names()) - set(WORKS))


TARGETS: dict[str, Counterpart] = {}


def target_of(spec: ModelSpec) -> Counterpart:
    """The counterpart, found once for all checks of a spec."""
    if spec.digest() not in TARGETS:
        TARGETS[spec.digest()] = counterpart(spec)
    return TARGETS[spec.digest()]


def exported(spec: ModelSpec, folder: Path) -> Model:
    """A random model of a spec, written to a folder."""
    model = spec.build().eval()
    randomise(model, 0.1)
    write_model(folder, target_of(spec), model.state_dict())
    return model


def worst_difference(spec: ModelSpec, folder: Path, transformers: ModuleType) -> tuple[float, float]:
    """The largest difference from transformers' model, and from the model that an import of the export gives."""
    torch.manual_seed(0)
    model = exported(spec, folder)
    written = PretrainedFolder.open(folder)
    again = written.spec.build().eval()
    again.load_state_dict(written.tensors())
    kind = getattr(transformers, target_of(spec).architecture)
    peer: Any = kind.from_pretrained(folder, attn_implementation="eager").eval()
    theirs = 0.0
    for lengths in BATCHES:
        tokens, valid = torch.randint(5, 90, (len(lengths), max(lengths))), lengths_mask(lengths)
        first, second = outputs(model, peer, tokens, valid)
        assert first.shape == second.shape
        theirs = max(theirs, (first - second).abs().max().item())
    ours = (first - outputs(again, peer, tokens, valid)[0]).abs().max().item()  # of the last batch, which has padding
    return theirs, ours


@pytest.fixture(scope="module")
def differences(transformers: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The differences of a preset. Small models of one family are the same, whatever the size of the preset."""
    known: dict[str, tuple[float, float]] = {}

    def of(name: str) -> tuple[float, float]:
        spec = small(name)
        if spec.digest() not in known:
            known[spec.digest()] = worst_difference(spec, tmp_path_factory.mktemp("export"), transformers)
        return known[spec.digest()]

    return of


def test_the_table_has_every_preset() -> None:
    assert set(rows()) == set(preset_names())


@pytest.mark.parametrize("name", one_of_each_fast(WORKS))
def test_a_preset_computes_the_same_in_transformers_and_when_imported_again(name: str, differences: Any) -> None:
    assert target_of(small(name)).architecture == rows()[name].hf.strip("`")
    theirs, ours = differences(name)
    assert theirs <= 1e-4 and ours <= 1e-6


@pytest.mark.parametrize("name", one_of_each_fast(REFUSED))
def test_a_preset_without_a_counterpart_is_refused_with_the_part_that_differs(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        counterpart(small(name))
    reason = refused(rows()[name].hf)
    assert reason and reason.replace("`", "") in str(caught.value), str(caught.value)


HEADS = {
    "words of a tied table": ("small-encoder", Tied(), "EuroBertForMaskedLM"),
    "hidden states": ("small-encoder", Hidden(), "EuroBertModel"),
    "tags": ("small-encoder", TokenClassifier(classes=5), "EuroBertForTokenClassification"),
    "BERT's words": ("bert-base", MaskedWordsHead(), "BertForMaskedLM"),
    "BERT's classes": ("bert-base", Classifier(classes=3, pool=First(), hidden=32), "BertForSequenceClassification"),
    "BERT's tags": ("bert-base", TokenClassifier(classes=5), "BertForTokenClassification"),
    "BERT's body": ("bert-base", Hidden(), "BertModel"),
    "ALBERT's classes": (
        "albert-base",
        Classifier(classes=3, pool=First(), hidden=32),
        "AlbertForSequenceClassification",
    ),
    "a mean": ("bert-base", Pooled(pool=Mean()), "BertModel"),
    "an untied Llama": ("small", Untied(), "LlamaForCausalLM"),
    "an untied GPT-2": ("gpt2", Untied(), "GPT2LMHeadModel"),
    "XLNet's words without a bias": ("xlnet-large", Tied(), "XLNetLMHeadModel"),
}


IMPORTED = ("BERT's tags", "BERT's body", "ALBERT's classes", "hidden states")
"""Heads whose folders tests/interop/test_families.py imports and exports again: in the slow suite."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in IMPORTED else name for name in HEADS]
)
def test_other_heads_have_their_classes(name: str, transformers: ModuleType, tmp_path: Path) -> None:
    preset, head, architecture = HEADS[name]
    spec = body_of(small(preset).with_head(head))
    assert target_of(spec).architecture == architecture
    theirs, ours = worst_difference(spec, tmp_path, transformers)
    assert theirs <= 1e-4 and ours <= 1e-6


CHANGES: dict[str, tuple[str, str, Any]] = {
    "a GPT-2 without biases in attention": ("gpt2", "stack.blocks.layer.branches.0.part.bias", False),
    "a GPT-2 whose norms have no bias": ("gpt2", "exit_norm.bias", False),
    "a GPT-2 whose norms have no gain": ("gpt2", "exit_norm.gain", False),
    "a BERT without types": ("bert-base", "types", 0),
    "a Llama with another dropout": ("small", "stack.blocks.layer.branches.0.dropout", 0.3),
    "a Llama with explicit heads": ("small", "stack.blocks.layer.branches.0.part.head_dim", 6),
    "a Llama with a window": (
        "small",
        "stack.blocks.layer.branches.0.part.mask",
        {"kind": "window", "size": 5},
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_they_alone_have_is_zero_or_one(name: str, transformers: ModuleType, tmp_path: Path) -> None:
    preset, path, value = CHANGES[name]
    theirs, ours = worst_difference(small(preset).with_(path, value), tmp_path, transformers)
    assert theirs <= 1e-4 and ours <= 1e-6


REFUSALS: dict[str, tuple[str, str, Any, str]] = {
    "another norm": ("small", "exit_norm", {"kind": "scale"}, "model.exit_norm: scale here, rms there"),
    "an activation": ("gpt2", "stack.blocks.layer.branches.1.part.activation", "sigmoid", "activation: sigmoid here"),
    "an odd scale": ("small", "stack.blocks.layer.branches.0.part.scale", 0.5, "part.scale: 0.5 here, 0.35355"),
    "early exits": ("gpt2", "exits", {"every": 1}, "model.exits"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_names_the_first_difference_with_both_values(name: str) -> None:
    preset, path, value, words = REFUSALS[name]
    with pytest.raises(SpecError) as caught:
        counterpart(small(preset).with_(path, value))
    assert words in str(caught.value), str(caught.value)


def test_a_refusal_names_a_part_also_of_a_model_that_no_family_comes_near() -> None:
    bag = {"kind": "classifier", "classes": 2, "pool": {"kind": "attention"}}
    spec = small("small-encoder").with_("head", bag).with_("embedding", {"kind": "n_grams"})
    with pytest.raises(SpecError, match=r"differs in model\.stack\.blocks\.layer\.branches\.0\.part: identity"):
        counterpart(spec.with_("stack.blocks.layer.branches.0.part", {"kind": "identity"}))
