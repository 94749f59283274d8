"""Magnitude masks: real zeros, exactly as many as wanted, which stay zero while the rest is trained."""

import pytest
import torch
import torch.nn.utils.prune as torch_prune
from tests.shrink.test_removals import decoder, evidence
from torch import nn

import anyformer as af
from anyformer.core import Model
from anyformer.core.module import Linear
from anyformer.errors import SpecError
from anyformer.optim.optimizer import OptimizerSpec, learned
from anyformer.shrink.importance import importance_of
from anyformer.shrink.pruning import Scope, set_to_zero


def matrices(model: Model) -> dict[str, Linear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, Linear)}


def zeros(model: Model) -> dict[str, torch.Tensor]:
    return {name: matrix.weight == 0 for name, matrix in matrices(model).items()}


def torch_masks(model: Model, share: float, scope: Scope) -> dict[str, torch.Tensor]:
    """What torch.nn.utils.prune removes from equal matrices."""
    copies = {name: nn.Linear(*matrix.weight.shape[::-1], bias=False) for name, matrix in matrices(model).items()}
    for name, copy in copies.items():
        copy.weight.data = matrices(model)[name].weight.detach().clone()
    if scope == "model":
        pairs = [(copy, "weight") for copy in copies.values()]
        torch_prune.global_unstructured(pairs, pruning_method=torch_prune.L1Unstructured, amount=share)
    else:
        for copy in copies.values():
            torch_prune.l1_unstructured(copy, "weight", amount=share)
    return {name: copy.weight_mask == 0 for name, copy in copies.items()}


@pytest.mark.row("OPT-09", clause="equals torch.nn.utils.prune")
@pytest.mark.row("OPT-09", clause="the threshold is global or per layer")
@pytest.mark.parametrize("scope", ["model", "layer"])
def test_the_masks_are_those_of_torch(scope: Scope) -> None:
    model = decoder().build(seed=5)
    expected = torch_masks(model, 0.37, scope)
    set_to_zero(model, 0.37, importance_of("magnitude"), evidence(), scope)
    assert all(torch.equal(mask, expected[name]) for name, mask in zeros(model).items())


@pytest.mark.row("OPT-09", clause="the p percent of weights smallest in |w| become zero")
@pytest.mark.row("OPT-09", clause="the sparsity is exactly p")
@pytest.mark.parametrize("share", [0.1, 0.5, 0.93])
def test_exactly_the_smallest_share_becomes_zero(share: float) -> None:
    model = decoder().build(seed=5)
    before = torch.cat([matrix.weight.detach().flatten().clone() for matrix in matrices(model).values()])
    set_to_zero(model, share, importance_of("magnitude"), evidence())
    after = torch.cat([matrix.weight.detach().flatten() for matrix in matrices(model).values()])
    assert (after == 0).sum() == round(share * before.numel())
    assert before[after == 0].abs().max() <= before[after != 0].abs().min()
    assert torch.equal(after[after != 0], before[after != 0])


def test_by_role_every_role_loses_the_same_share() -> None:
    model = decoder().build(seed=5)
    matrix = model.get_submodule("stack.layers.0.branches.0.part.qkv")
    assert isinstance(matrix, Linear)
    with torch.no_grad():
        matrix.weight[: matrix.widths[0]] *= 100  # by the whole model, no query weight of this layer would go
    set_to_zero(model, 0.5, importance_of("magnitude"), evidence(), "role")
    shares: dict[str, list[torch.Tensor]] = {}
    for each in matrices(model).values():
        for (role, _), rows in zip(each.roles["weight"], each.weight.split(list(each.widths)), strict=True):
            shares.setdefault(role, []).append((rows == 0).flatten())
    assert {role: torch.cat(masks).float().mean().item() for role, masks in shares.items()} == dict.fromkeys(
        shares, 0.5
    )


def test_rounds_keep_what_earlier_rounds_removed() -> None:
    for by in ("magnitude", "random", "taylor"):
        model = af.Decoder(vocab=300, dim=24, stack=decoder().stack, head=af.Tied()).build(seed=5)
        first = None
        for share in (0.3, 0.6):
            set_to_zero(model, share, importance_of(by), evidence())
            first = zeros(model) if first is None else first
        assert all((mask & ~zeros(model)[name]).sum() == 0 for name, mask in first.items()), by


def test_leave_one_out_refuses_single_weights() -> None:
    with pytest.raises(SpecError, match="too long"):
        set_to_zero(decoder().build(), 0.5, importance_of("leave_one_out"), evidence())


@pytest.mark.row("OPT-09", clause="the mask persists through training steps")
@pytest.mark.parametrize("inner", [af.AdamW(weight_decay=0.1), af.Muon(), af.Lion(), af.Adafactor(), af.SGD()])
def test_zeros_stay_zero_and_the_rest_learns(inner: OptimizerSpec) -> None:
    model = decoder().build(seed=5)
    set_to_zero(model, 0.5, importance_of("magnitude"), evidence())
    mask, before = zeros(model), {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = af.KeepZeros(lr=1e-2, optimizer=inner).build(learned({"model": model}))
    tokens = torch.arange(24).view(2, 12)
    for _ in range(3):
        model(tokens).y.square().mean().backward()
        optimizer.step(1.0)
        optimizer.zero_grad()
    assert all(torch.equal(mask[name], after) for name, after in zeros(model).items())
    assert all(not torch.equal(matrix.weight, before[f"{name}.weight"]) for name, matrix in matrices(model).items())


def test_an_optimiser_that_keeps_zeros_leaves_other_settings_to_the_inner_one() -> None:
    with pytest.raises(SpecError, match=r"optimizer\.optimizer\.weight_decay"):
        af.KeepZeros(weight_decay=0.1)
