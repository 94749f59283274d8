"""Quantised models: causality, padding and the cache hold, files are smaller, and scores stay."""

from pathlib import Path

import pytest
import torch
from tests.evaluation.runs import ONE, file, run_of
from tests.shrink.test_removals import LENGTH, VOCAB, decoder, output, translator

import anyformer as af
from anyformer.core import Frame, Model, ModelSpec, Work, cost
from anyformer.core.module import Linear
from anyformer.errors import CheckpointError, SpecError
from anyformer.models.quantised import Quantised
from anyformer.ops.int8_linear import Activations, Int8Linear
from anyformer.run import Run, train
from anyformer.shrink.quantising import quantise, quantised_model

MIXERS = {
    "attention": decoder(),
    "grouped": decoder(af.Attention(heads=4, kv_heads=2, position=af.Rope())),
    "lstm": decoder(af.LSTM()),
    "mamba": decoder(af.Mamba()),
    "linear": decoder(af.LinearAttention(), af.GLU(hidden=20)),
}
TOLERANCE = {"int8": 0.03, "float": 1e-4}
"""Largest difference of two ways to compute an output, as a share of the largest output. int8 activations round, so a
difference in the last bit may become a whole step of one activation."""


def both(spec: ModelSpec, activations: Activations) -> tuple[Model, Model]:
    """A model, and its quantised copy."""
    model = spec.build(seed=4).eval()
    return model, quantised_model(Quantised(model=spec, activations=activations), model.state_dict())


def near(one: torch.Tensor, other: torch.Tensor, activations: Activations) -> bool:
    return bool((one - other).abs().max() <= TOLERANCE[activations] * other.abs().max())


@pytest.mark.parametrize("activations", ["int8", "float"])
@pytest.mark.parametrize("name", MIXERS)
@torch.no_grad()
def test_cached_decoding_equals_one_pass(name: str, activations: Activations) -> None:
    _, model = both(MIXERS[name], activations)
    tokens = torch.randint(VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    whole, state, steps = model(tokens).y, model.init_state(2, LENGTH), []
    for t in range(LENGTH):
        out = model(tokens[:, t : t + 1], Frame(positions=torch.full((2, 1), t)), state)
        state = out.state
        steps.append(out.y)
    assert near(torch.cat(steps, dim=1), whole, activations)


@pytest.mark.parametrize("activations", ["int8", "float"])
@pytest.mark.parametrize("name", MIXERS)
@torch.no_grad()
def test_no_token_sees_the_future(name: str, activations: Activations) -> None:
    """The future is changed to other tokens, which must not change a bit of the past."""
    _, model = both(MIXERS[name], activations)
    tokens = torch.randint(VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    other = tokens.clone()
    other[:, 4:] = (other[:, 4:] + 11) % VOCAB
    before, after = model(tokens).y, model(other).y
    assert torch.equal(before[:, :4], after[:, :4]) and not torch.equal(before[:, 4:], after[:, 4:])


@pytest.mark.parametrize("activations", ["int8", "float"])
@pytest.mark.parametrize("name", MIXERS)
@torch.no_grad()
def test_padding_changes_nothing(name: str, activations: Activations) -> None:
    _, model = both(MIXERS[name], activations)
    tokens = torch.randint(VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    valid = torch.arange(LENGTH) < torch.tensor([[LENGTH], [4]])
    padded = model(tokens, Frame(valid=valid)).y
    assert near(padded[1, :4], model(tokens[1:, :4]).y[0], activations)


@pytest.mark.parametrize("activations", ["int8", "float"])
@torch.no_grad()
def test_a_quantised_translator_is_near_the_whole_one(activations: Activations) -> None:
    plain, model = both(translator(), activations)
    assert not any(isinstance(module, Linear) for module in model.modules())
    whole, rounded = output(translator(), plain), output(translator(), model)
    assert 0 < (whole - rounded).abs().max() <= 0.05 * whole.abs().max()


def test_the_cost_is_that_of_the_model_it_was_made_from() -> None:
    work = Work(length=LENGTH)
    plain, quantised = (cost(spec, work).total for spec in (decoder(), Quantised(model=decoder())))
    assert (plain.params, plain.flops_forward) == (quantised.params, quantised.flops_forward)
    assert plain.state_bytes == quantised.state_bytes


def test_a_fresh_quantised_model_has_the_weights_of_its_seed() -> None:
    plain, fresh = decoder().build(seed=7), Quantised(model=decoder()).build(seed=7)
    name = "stack.layers.1.branches.1.part.up"
    module = fresh.get_submodule(name)
    assert isinstance(module, Int8Linear)
    step = module.scales[:, None]
    assert ((module.weight - plain.get_submodule(name).weight).abs() <= step / 2 * 1.001).all()


@pytest.mark.parametrize("task", ["language", "pairs", pytest.param("judged", marks=pytest.mark.slow)])
def test_a_quantised_run_is_a_smaller_run(task: str, tmp_path: Path) -> None:
    source = run_of(task)
    run = quantise(source, tmp_path / "int8")
    sizes = [(each.checkpoint() / "model.safetensors").stat().st_size for each in (source, run)]
    matrices = sum(module.weight.numel() for module in source.model().modules() if isinstance(module, Linear))
    assert sizes[0] - sizes[1] > 2.5 * matrices  # of four bytes a weight one stays; scales and longer names take some
    before, after = (each.evaluate(limit=30)["loss"].value for each in (source, run))
    assert after == pytest.approx(before, rel=0.05)
    if task != "judged":
        assert len(run.generate(["the cat jumps", "the fox"])) == 2


@pytest.mark.row("OPT-13", clause="accuracy drops by less than 1%")
def test_the_accuracy_of_a_classifier_stays(tmp_path: Path) -> None:
    options = (*ONE, "model.preset=small-encoder", "model.stack.depth=2", "train.steps=40")
    source = train(file("classes"), *options, out=tmp_path / "whole", cache=tmp_path / "cache")
    accuracies = [each.evaluate()["accuracy"].value for each in (source, quantise(source, tmp_path / "int8"))]
    assert accuracies[0] > 0.9
    assert accuracies[1] >= accuracies[0] - 0.01


def test_a_quantised_run_cannot_be_trained_or_quantised_again(tmp_path: Path) -> None:
    run = quantise(run_of("language"), tmp_path / "int8")
    with pytest.raises(SpecError, match="quantised already"):
        quantise(run, tmp_path / "again")
    with pytest.raises(SpecError, match="cannot be trained"):
        train(run.recipe, out=tmp_path / "on")
    with pytest.raises(SpecError, match="cannot be trained"):
        train(run.folder, resume=True)
    with pytest.raises(SpecError, match=r"exists already\. Use another folder"):
        quantise(str(run_of("language").folder), str(run.folder))
    with pytest.raises(SpecError, match="quantised already"):
        Quantised(model=Quantised(model=decoder()))


def test_a_damaged_quantised_file_is_refused(tmp_path: Path) -> None:
    run = quantise(run_of("language"), tmp_path / "int8")
    file = run.checkpoint() / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(CheckpointError):
        Run.open(run.folder).trained("cpu")
