"""A plain torch module in a slot: held to the contract of every part, trained, and stored under its name."""

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.conformance.checks import CHECKS, apply
from tests.conformance.subjects import subjects_of
from tests.training.small import text
from torch import Tensor, nn

from anyformer.core import Frame, PartSpec, Site
from anyformer.core.module import Call
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.parts.mixers.torch_module import Factory, Reads, torch_part
from anyformer.run import Run, train


class Shifted(nn.Module):
    """Adds to each token a learned map of the token before it."""

    def __init__(self, dim: int):
        super().__init__()
        self.map = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.map(nn.functional.pad(x, (0, 0, 1, 0))[:, :-1])


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    PartSpec.kinds.pop("mine", None)


@pytest.mark.parametrize(("factory", "reads"), [(Shifted, "left"), (lambda dim: nn.Linear(dim, dim), "itself")])
def test_it_conforms_within_its_declared_limits(factory: type[nn.Module], reads: Reads) -> None:
    for subject in subjects_of(torch_part("mine", factory, reads=reads)):
        for check in CHECKS:
            if subject.causal or not check.causal_only:
                apply(check, subject)


def test_a_run_that_holds_one_opens_after_its_name_is_registered(tmp_path: Path) -> None:
    part = torch_part("mine", Shifted)()
    model = Decoder(dim=16, stack=Stack(blocks={"layer": Block(branches=(Branch(part=part),))}, depth=1))
    quick = ("data.packing=bucket", "data.tokenizer.kind=byte", "data.context=32", "train.batch_tokens=256")
    run = train(model, *quick, data=text(tmp_path), steps=2, out=tmp_path / "run", cache=tmp_path / "cache")
    assert len(run.generate(["the cat"])) == 1
    del PartSpec.kinds["mine"]
    with pytest.raises(SpecError, match=r"no PartSpec is called 'mine'.*torch_part"):
        Run.open(tmp_path / "run").recipe  # noqa: B018
    torch_part("mine", Shifted)
    assert Run.open(tmp_path / "run").recipe.model.digest() == run.recipe.model.digest()


def test_a_model_that_holds_one_is_pickled_by_the_name_of_the_part() -> None:
    part = torch_part("mine", lambda dim: Shifted(dim))()
    spec = Decoder(vocab=9, dim=8, stack=Stack(blocks={"layer": Block(branches=(Branch(part=part),))}, depth=1))
    model, tokens = spec.build().eval(), torch.arange(8)[None]
    pickled = pickle.dumps((spec, model))
    again, same = pickle.loads(pickled)
    assert again == spec and torch.equal(same(tokens, Frame()).y, model(tokens, Frame()).y)
    del PartSpec.kinds["mine"]
    assert copy.deepcopy(part) is part
    with pytest.raises(SpecError, match=r"no PartSpec is called 'mine'.*torch_part"):
        pickle.loads(pickled)


def test_the_seed_of_the_model_decides_the_weights_of_the_module() -> None:
    part = torch_part("mine", Shifted)()
    model = Decoder(vocab=9, dim=8, stack=Stack(blocks={"layer": Block(branches=(Branch(part=part),))}, depth=1))
    one, same, other = (dict(model.build(seed=seed).named_parameters()) for seed in (1, 1, 2))
    name = next(name for name in one if "map.weight" in name)
    assert torch.equal(one[name], same[name]) and not torch.equal(one[name], other[name])


def test_a_module_that_reads_everything_is_refused_in_a_decoder() -> None:
    part = torch_part("mine", Shifted, reads="all")()
    with pytest.raises(SpecError, match="reads tokens to the right"):
        Decoder(vocab=9, dim=8, stack=Stack(blocks={"layer": Block(branches=(Branch(part=part),))}, depth=1)).build()


@pytest.mark.parametrize(("reads", "tokens"), [("itself", 1), ("left", 8)])
def test_a_step_of_decoding_costs_all_tokens_unless_each_is_read_alone(reads: Reads, tokens: int) -> None:
    part = torch_part("mine", lambda dim: nn.Linear(dim, dim), reads=reads)().build(Site(dim=4))
    assert part.core_flops(Call(batch=2, length=1, past=7)) == (2 * 2 * tokens * 16, 2 * 2 * 2 * tokens * 16)
    assert part.core_flops(Call(batch=2, length=8))[0] == 2 * 2 * 8 * 16


@pytest.mark.parametrize(
    ("factory", "complaint"),
    [
        (lambda dim: nn.LSTM(dim, dim, batch_first=True), r"LSTM must map \[b t d\] to \[b t d\], got tuple"),
        (lambda dim: nn.Linear(dim, dim + 1), r"Linear must map .* got \[1, 3, 17\] for \[1, 3, 16\]"),
    ],
)
def test_a_module_of_another_shape_is_refused_by_name(factory: Factory, complaint: str) -> None:
    part = torch_part("mine", factory)().build(Site(dim=16))
    with pytest.raises(SpecError, match=complaint):
        part(torch.zeros(1, 3, 16), Frame())


@pytest.mark.parametrize(
    ("factory", "reads", "side"),
    [
        (lambda dim: nn.TransformerEncoderLayer(dim, 2, 16, batch_first=True), "left", "right"),
        (Shifted, "itself", "left"),
    ],
)
def test_a_module_that_reads_more_than_was_declared_is_refused(factory: Factory, reads: Reads, side: str) -> None:
    layer = Block(branches=(Branch(part=torch_part("mine", factory, reads=reads)()),))
    with pytest.raises(SpecError, match=f"depends on tokens to the {side}. Declare reads='.*', not '{reads}'"):
        Decoder(vocab=9, dim=16, stack=Stack(blocks={"layer": layer}, depth=1)).build()


def test_what_is_no_factory_and_unknown_reads_are_refused() -> None:
    with pytest.raises(SpecError, match="expected a function dim -> module"):
        torch_part("mine", nn.Linear(3, 3))  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="reads='right' is not a choice"):
        torch_part("mine", Shifted, reads="right")  # type: ignore[arg-type]


def test_a_name_that_recipes_cannot_hold_or_that_is_taken_is_refused() -> None:
    for name in ("My Linear", "", 3):
        with pytest.raises(SpecError, match=r"torch_part: the name is written in recipes, such as 'my_linear', got "):
            torch_part(name, Shifted)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"a part of anyformer is called 'attention'\. Choose another name\."):
        torch_part("attention", Shifted)


def test_a_module_without_parameters_has_a_state() -> None:
    part = torch_part("mine", lambda dim: nn.ReLU())().build(Site(dim=16))
    assert part.init_state(2, 5).shape == (2, 6, 16)
