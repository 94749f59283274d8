"""How much of a model learns: graded rates, frozen layers, and low-rank updates."""

import pytest
import torch
from torch import nn

from anyformer.core import Model
from anyformer.core.fields import leaves
from anyformer.core.spec import decode
from anyformer.errors import SpecError
from anyformer.models.single import Single
from anyformer.optim.adamw import AdamW
from anyformer.optim.muon import Muon
from anyformer.optim.optimizer import OptimizerSpec, learned
from anyformer.optim.tunings.layers import LayerRates
from anyformer.optim.tunings.lora import LoRATuning
from anyformer.optim.tunings.tuning_spec import TuningSpec, distances_from_head, freeze
from anyformer.parts.combine.lora import LoRALinear, merged
from anyformer.training.recipes.recipe import load

SMALL = ("model.dim=16", "model.vocab=50", "model.stack.depth=3", "model.stack.blocks.layer.branches.0.part.heads=2")


def spec_of(preset: str = "small-encoder", *more: str) -> Single:
    spec = load(preset, *SMALL, *more)
    assert isinstance(spec, Single)
    return spec


def rates_of(tuning: TuningSpec, spec: Single) -> dict[str, float]:
    model = spec.build()
    factors = tuning.factors(spec, model)
    return {name: factors[parameter] for name, parameter in model.named_parameters()}


def test_a_number_grades_the_rates_from_the_head_down_to_the_embeddings() -> None:
    rates = rates_of(LayerRates(rates=0.5), spec_of("small-encoder", 'model.head={kind="untied"}'))
    by_place = {
        place: {rate for name, rate in rates.items() if name.startswith(place)}
        for place in ("head.", "exit_norm.", "stack.layers.2.", "stack.layers.1.", "stack.layers.0.", "embedding.")
    }
    assert list(by_place.values()) == [{1.0}, {0.5}, {0.5}, {0.25}, {0.125}, {0.0625}]
    assert len(rates) == sum(sum(name.startswith(place) for name in rates) for place in by_place)


def test_a_list_gives_the_factors_and_its_last_one_holds_below() -> None:
    rates = rates_of(LayerRates(rates=(1.0, 0.3, 0.0)), spec_of("small-encoder", 'model.head={kind="untied"}'))
    assert {rates[name] for name in rates if name.startswith("stack.layers.2.")} == {0.3}
    assert {rates[name] for name in rates if name.startswith(("stack.layers.0.", "stack.layers.1.", "embed"))} == {0.0}


def test_the_layers_of_an_encoder_lie_below_those_of_its_decoder() -> None:
    spec = load("small-encoder-decoder", *(f"model.{side}.{key}" for side in ("encoder", "decoder") for key in (
        "dim=16", "vocab=50", "stack.depth=2")))  # fmt: skip
    model = spec.build()
    distances = distances_from_head(model)
    far = {name: distances[parameter] for name, parameter in model.named_parameters()}
    places = (
        "decoder.stack.layers.1.",
        "decoder.stack.layers.0.",
        "encoder.stack.layers.1.",
        "encoder.stack.layers.0.",
    )
    assert [{far[name] for name in far if name.startswith(place)} for place in places] == [{1}, {2}, {3}, {4}]
    assert far["encoder.embedding.weight"] == 5


def test_a_shared_layer_has_the_rate_of_its_last_call() -> None:
    model = spec_of("small-encoder", "model.stack.blocks.layer.share=one").build()
    distances = distances_from_head(model)
    assert {distances[parameter] for name, parameter in model.named_parameters() if "layers" in name} == {1}


@pytest.mark.parametrize("optimizer", [AdamW(lr=0.01, weight_decay=0.1), Muon(lr=0.02)], ids=lambda spec: spec.kind)
def test_frozen_parameters_get_no_gradient_and_no_state_and_the_others_their_rate(optimizer: OptimizerSpec) -> None:
    spec = spec_of("small-encoder", 'model.head={kind="untied"}')
    model = spec.build()
    rates = freeze(LayerRates(rates=(1.0, 0.5, 0.0)), spec, model)
    tensors = learned({"model": model}, rates)
    built = optimizer.build(tensors)
    assert {name.split(".")[1] for name in built.states} == {"head", "exit_norm", "stack"}
    assert {name for name in built.states if "stack" in name} == {name for name in built.states if "layers.2" in name}
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    model(torch.tensor([[3, 4, 5]])).y.square().mean().backward()
    frozen = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert frozen and all(rates[f"model.{name}"] == 0 for name in frozen)
    built.step(1.0)
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved.isdisjoint(frozen) and {"head.words.weight"} <= moved
    groups = {entry.name: group["lr"] for stepper in built.steppers for group in stepper.param_groups
              for entry in group["learned"]}  # fmt: skip
    top, below = groups["model.head.words.weight"], groups["model.exit_norm.gain"]
    assert below == pytest.approx(0.5 * (optimizer.rest.lr if isinstance(optimizer, Muon) else top))


@pytest.mark.parametrize("rates", [-0.1, 1.5, [], [1.0, -1.0], "many"])
def test_rates_that_are_no_factors_are_refused(rates: object) -> None:
    with pytest.raises(SpecError, match="rates"):
        decode(TuningSpec, {"kind": "layers", "rates": rates})


def perturbed(spec: Single, tuning: LoRATuning) -> tuple[Single, Model]:
    """The model with updates that are not zero."""
    adapted = tuning.adapt(spec)
    assert isinstance(adapted, Single)
    model = adapted.build().eval()
    for module in model.modules():
        if isinstance(module, LoRALinear):
            for matrix in module.lora_b:
                nn.init.normal_(matrix.weight)
    return adapted, model


def test_the_first_output_equals_that_of_the_model_without_updates() -> None:
    spec, tuning = spec_of(), LoRATuning(rank=2)
    plain, adapted = spec.build(seed=3).eval(), tuning.adapt(spec).build(seed=9).eval()
    state, weights = adapted.state_dict(), plain.state_dict()
    taken = {name: weights[tuning.pretrained_name(name)] for name in state if tuning.pretrained_name(name) in weights}
    assert {tuning.pretrained_name(name) for name in taken} == set(weights)
    adapted.load_state_dict({**state, **taken})
    tokens = torch.randint(50, (2, 7))
    torch.testing.assert_close(adapted(tokens).y, plain(tokens).y, rtol=0, atol=0)


@pytest.mark.parametrize(
    "roles", [("query", "value"), ("query", "key", "value", "out"), ("in", "gate", "out"), ("out",)], ids=" ".join
)
def test_merged_weights_give_the_logits_of_the_updates(roles: tuple[str, ...]) -> None:
    spec = spec_of()
    adapted, model = perturbed(spec, LoRATuning(rank=3, alpha=6.0, roles=roles))  # type: ignore[arg-type]
    plain, tensors = merged(adapted, model)
    assert plain == spec
    smaller = plain.build().eval()
    smaller.load_state_dict(tensors)
    tokens = torch.randint(50, (2, 9))
    with torch.no_grad():
        ours, theirs = model(tokens).y, smaller(tokens).y
        for name, parameter in model.named_parameters():
            parameter.mul_(".lora_b." not in name)
        assert (ours - model(tokens).y).abs().max() > 1e-2  # the updates do something
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_an_update_is_b_a_of_its_own_slice_alone() -> None:
    _, model = perturbed(spec_of(), LoRATuning(rank=2, alpha=4.0, roles=("value",)))
    matrix = next(module for module in model.modules() if isinstance(module, LoRALinear))
    change = matrix.merged_weight() - matrix.frozen.weight
    queries, keys, values = change.split(matrix.widths)
    assert not queries.any() and not keys.any()
    (up,) = matrix.lora_b
    torch.testing.assert_close(values, 2.0 * up.weight @ matrix.lora_a.weight, atol=1e-6, rtol=1e-5)


def test_only_the_updates_and_a_head_of_classes_learn() -> None:
    words = spec_of()
    scores = spec_of("small-encoder", 'model.head={kind="classifier", classes=2, pool={kind="first"}}')
    for spec, others in ((words, set[str]()), (scores, {"head.classes.weight", "head.classes.bias"})):
        adapted = LoRATuning().adapt(spec)
        model = adapted.build()
        rates = freeze(LoRATuning(), adapted, model)
        learning = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        assert learning - others == {name for name in learning if ".lora_b." in name or ".lora_a." in name}
        assert learning >= others and {name for name, rate in rates.items() if rate} == {
            f"model.{it}" for it in learning
        }


def test_each_branch_is_wrapped_once_and_only_where_it_has_such_matrices() -> None:
    spec = LoRATuning(rank=2).adapt(spec_of())
    kinds = {key: kind for key, kind in leaves(spec.to_dict()) if key.endswith("part.kind")}
    assert [kind for key, kind in kinds.items() if key.endswith("branches.0.part.kind")] == ["lora"]
    assert "lora" not in [kind for key, kind in kinds.items() if key.endswith("branches.1.part.kind")]
    assert LoRATuning(rank=2).adapt(spec) == spec


def test_roles_that_no_matrix_has_are_refused_with_those_that_exist() -> None:
    with pytest.raises(SpecError, match=r"tune\.roles.*role head.*Roles: .*query"):
        LoRATuning(roles=("head",)).adapt(spec_of())
