"""What `help()`, a tooltip and a mistyped name in Python say about a spec class."""

import inspect

import pytest

import anyformer
from anyformer.core import Work, cost
from anyformer.errors import SpecError
from anyformer.evaluation.metrics.score import Score, ScoreTable
from anyformer.generation.samplers.sample import Sample
from anyformer.inference.text_generator import GenerationConfig
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.parts.mixers.attention import Attention


def test_the_docstring_of_a_spec_describes_its_fields() -> None:
    summary, _, fields = (inspect.getdoc(Attention) or "").partition("\n\n")
    assert summary.startswith("Multi-head softmax attention") and fields.startswith("heads: Query heads.\nkv_heads: ")
    assert "\nfilters: " in (inspect.getdoc(Sample) or "")


def test_the_docstring_of_generation_settings_describes_its_fields() -> None:
    assert "max_new: Most new tokens" in (inspect.getdoc(GenerationConfig) or "")


def test_a_signature_shows_only_the_bounds_that_a_field_has() -> None:
    assert "Range(low=1)" in str(inspect.signature(Attention))


def test_a_mistyped_field_is_answered_with_the_similar_one() -> None:
    with pytest.raises(SpecError, match=r"head: Attention has no such field\. Did you mean 'heads'\? Known: bias, "):
        Attention(head=4)  # type: ignore[call-arg]
    with pytest.raises(SpecError, match=r"n_layers: Stack has no such field\. Did you mean 'depth'\?"):
        Stack(n_layers=2)  # type: ignore[call-arg]


def test_a_value_without_a_name_is_answered_with_the_fields() -> None:
    with pytest.raises(SpecError, match=r"Attention: name the value 4, such as heads=4\. Fields: heads, kv_heads, "):
        Attention(4)  # type: ignore[misc]


def test_the_signature_of_a_spec_is_that_of_its_fields() -> None:
    assert list(inspect.signature(Sample).parameters) == ["temperature", "filters"]


def test_a_value_of_another_type_is_named_by_diff_and_cost() -> None:
    with pytest.raises(SpecError, match=r"other: expected a spec, got 3\."):
        Attention().diff(3)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"spec: expected a model as a value, .* got 'small'"):
        cost("small", Work())  # type: ignore[arg-type]


def test_costs_and_scores_are_printed_as_tables() -> None:
    stack = Stack(blocks={"layer": Block(branches=(Branch(part=Attention(heads=2)),))}, depth=1)
    first, second, *_, last = str(cost(Decoder(vocab=11, dim=16, stack=stack), Work(batch=1, length=4))).splitlines()
    assert first.split() == ["parameters", "FLOPs", "forward"] and second.startswith("model (SingleModel) ")
    assert last.startswith("activations: ") and last.endswith("iB")
    scores = ScoreTable(loss=Score(2.5, 2.25, 2.75, "nats"), accuracy=Score(0.5, None, None, "3 texts"))
    assert repr(scores) == "loss      2.5000  (2.2500 to 2.7500)  nats\naccuracy  0.5000                      3 texts"


def test_a_mistyped_name_of_the_package_can_be_corrected_by_python() -> None:
    with pytest.raises(AttributeError) as caught:
        anyformer.Atention  # noqa: B018
    assert caught.value.name == "Atention" and caught.value.obj is anyformer
