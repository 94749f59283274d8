"""Learning rates that transfer: the coordinate check over widths and depths, and the factors of each role."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from anyformer.core import Frame, InitSpec, capture
from anyformer.errors import SpecError
from anyformer.models.decoder import Decoder
from anyformer.models.stack import Block, Branch, Stack
from anyformer.optim.adamw import AdamW
from anyformer.optim.lion import Lion
from anyformer.optim.muon import Muon
from anyformer.optim.optimizer import OptimizerSpec, learned
from anyformer.optim.sgd import SGD
from anyformer.optim.transfers.mup import MuPRates
from anyformer.parts.channels.glu import GLU
from anyformer.parts.heads.tied import Tied
from anyformer.parts.heads.untied import Untied
from anyformer.parts.inits.mup import MuPInit
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.mixers.lstm import LSTM
from anyformer.parts.mixers.mamba import Mamba
from anyformer.parts.norms.rms import RMSNorm

WORDS, STEPS, WIDTHS = 48, 6, (32, 128)
MIXERS: dict[str, Callable[[int], object]] = {
    "attention": lambda width: Attention(heads=width // 16),
    "lstm": lambda width: LSTM(),
    "mamba": lambda width: Mamba(),
}


def decoder(mixer: str, width: int, init: InitSpec, depth: int = 2, tied: bool = False) -> Decoder:
    parts = [MIXERS[mixer](width), GLU()]
    branches = tuple(Branch(part=part, norm=RMSNorm()) for part in parts)  # type: ignore[arg-type]
    head = Tied(scale="mup" if init.kind == "mup" else "one") if tied else Untied()
    stack = Stack(blocks={"layer": Block(branches=branches)}, depth=depth)
    return Decoder(dim=width, vocab=WORDS, stack=stack, head=head, init=init, exit_norm=RMSNorm())


def changes(spec: Decoder, optimizer: OptimizerSpec) -> dict[str, float]:
    """By how much a few updates change the residual stream behind each layer, and the logits: root mean squares."""
    model, rng = spec.build(seed=0), torch.Generator().manual_seed(1)
    tokens, updates = torch.randint(WORDS, (4, 16), generator=rng), optimizer.build(learned({"model": model}))

    def values() -> dict[str, torch.Tensor]:
        with torch.no_grad(), capture(model, "*.stream") as seen:
            logits = model(tokens, Frame()).y
        return {**{name: calls[0] for name, calls in seen.items()}, "logits": logits}

    before = values()
    for _ in range(STEPS):
        F.cross_entropy(model(tokens, Frame()).y.flatten(0, 1), tokens.roll(-1, 1).flatten()).backward()
        updates.step(1.0)
        updates.zero_grad()
    return {name: (value - before[name]).square().mean().sqrt().item() for name, value in values().items()}


def growth(sizes: list[float]) -> float:
    """The power of the width or depth by which a size grows; the second model is four times the first."""
    first, last = sizes
    return math.log(last / first, 4)


@pytest.mark.parametrize(
    "mixer", ["attention", *(pytest.param(mixer, marks=pytest.mark.slow) for mixer in ("lstm", "mamba"))]
)
def test_updates_change_a_wide_model_as_much_as_a_narrow_one(mixer: str) -> None:
    usual = [changes(decoder(mixer, width, NormalInit()), AdamW(lr=1e-3)) for width in WIDTHS]
    scaled = [changes(decoder(mixer, width, MuPInit()), AdamW(lr=1e-3, transfer=MuPRates())) for width in WIDTHS]
    for name in usual[0]:
        assert abs(growth([each[name] for each in scaled])) < 0.35, name
        assert growth([each[name] for each in usual]) > 0.5, name


@pytest.mark.parametrize("optimizer", [Lion(lr=2e-4, transfer=MuPRates()), Muon(lr=2e-3, transfer=MuPRates())])
def test_it_holds_for_other_optimisers(optimizer: OptimizerSpec) -> None:
    scaled = [changes(decoder("attention", width, MuPInit()), optimizer) for width in WIDTHS]
    for name in scaled[0]:
        assert abs(growth([each[name] for each in scaled])) < 0.35, name


def test_it_holds_with_a_tied_head() -> None:
    optimizer = AdamW(lr=1e-3, transfer=MuPRates())
    scaled = [changes(decoder("attention", width, MuPInit(), tied=True), optimizer) for width in WIDTHS]
    assert abs(growth([each["logits"] for each in scaled])) < 0.35


def test_updates_change_a_deep_model_as_much_as_a_shallow_one() -> None:
    def grown(transfer: MuPRates | None) -> float:
        optimizer = AdamW(lr=3e-3, transfer=transfer)
        models = {depth: decoder("attention", 64, MuPInit(width=64), depth) for depth in (2, 8)}
        return growth([changes(spec, optimizer)[f"stack.layers.{depth - 1}.stream"] for depth, spec in models.items()])

    assert abs(grown(MuPRates(width=64, branches=4))) < 0.35 < grown(None)


def test_a_model_of_the_base_size_has_the_rates_of_the_optimiser() -> None:
    model = decoder("attention", 64, MuPInit(width=64)).build(seed=0)
    optimizer = AdamW(lr=1e-3, transfer=MuPRates(width=64, branches=4)).build(learned({"model": model}))
    by_name = {
        parameter.name: group["lr"]
        for stepper in optimizer.steppers
        for group in stepper.param_groups
        for parameter in group["learned"]
    }
    attention = [rate for name, rate in by_name.items() if "branches.0.part" in name]
    assert attention and all(rate == pytest.approx(1e-3) for rate in attention)
    assert by_name["model.head.words.weight"] == pytest.approx(1e-3)
    assert by_name["model.stack.layers.0.branches.1.part.down.weight"] < 0.5e-3  # more inputs than the width


def test_weight_decay_does_not_fall_with_the_rate() -> None:
    model = decoder("attention", 256, MuPInit(width=64)).build(seed=0)
    optimizer = AdamW(lr=1e-3, weight_decay=0.1, transfer=MuPRates(width=64)).build(learned({"model": model}))
    decays = [group for stepper in optimizer.steppers for group in stepper.param_groups if group["weight_decay"]]
    assert decays and all(group["peak"] * group["weight_decay"] == pytest.approx(1e-4) for group in decays)


def test_an_optimiser_without_a_rule_is_refused() -> None:
    with pytest.raises(SpecError, match="transfer: no rule is known for sgd"):
        SGD(transfer=MuPRates())
