"""Which tensors learn, under which name, and what their roles decide."""

from typing import get_args

import pytest
import torch
from torch import nn

from anyformer.core import Role
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.optim import AdamW, LearnedTensor, Muon, learned
from anyformer.optim.muon import MuonStepper
from anyformer.optim.optimizer import TREATMENTS, grouped
from anyformer.parts.channels.glu import GLU
from anyformer.parts.heads.untied import Untied
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.layer import LayerNorm

BRANCHES = (Branch(part=Attention(heads=2, bias=True), norm=LayerNorm()), Branch(part=GLU(hidden=24)))
STACK = Stack(blocks={"layer": Block(branches=BRANCHES)}, depth=2)


def decoder(**fields: object) -> nn.Module:
    return Decoder(vocab=40, dim=16, stack=STACK, max_len=64, **fields).build()


def test_every_role_has_a_treatment() -> None:
    assert set(TREATMENTS) == set(get_args(Role))


def test_every_parameter_is_found_once_with_its_role() -> None:
    model = decoder(head=Untied())
    found = learned({"model": model})
    assert {one.name: one.tensor for one in found} == {f"model.{n}": p for n, p in model.named_parameters()}
    assert {one.role for one in found} >= {"query", "out", "gate", "embed", "head", "gain", "bias"}


def test_a_tied_table_counts_once_and_so_does_one_of_two_models() -> None:
    model, other = decoder(), decoder()
    assert [one.role for one in learned({"model": model})].count("head") == 0
    other.embedding.weight = model.embedding.weight
    both = learned({"model": model, "generator": other})
    assert len(both) == len({id(one.tensor) for one in both}) == 2 * len(learned({"model": model})) - 1
    assert sum(one.tensor is model.embedding.weight for one in both) == 1


def test_what_is_frozen_does_not_learn() -> None:
    model = decoder()
    model.embedding.requires_grad_(False)
    assert "embed" not in {one.role for one in learned({"model": model})}
    model.requires_grad_(False)
    with pytest.raises(SpecError, match="no parameter is trainable"):
        Muon().build(learned({"model": model}))


def test_norms_biases_and_embeddings_do_not_decay() -> None:
    found = learned({"model": decoder(head=Untied())})
    groups = grouped(found, 0.1, 0.5, {})
    decays = {one.name: group["weight_decay"] for group in groups for one in group["learned"]}
    assert len(decays) == len(found)
    for one in found:
        looked_up = one.role in ("embed", "position")
        assert decays[one.name] == (0.5 if one.tensor.dim() == 2 and not looked_up else 0.0), one.name


def test_muon_takes_the_hidden_matrices_and_nothing_else() -> None:
    found = learned({"model": decoder(head=Untied())})
    optimizer = Muon().build(found)
    own = next(stepper for stepper in optimizer.steppers if isinstance(stepper, MuonStepper))
    taken = {id(tensor) for group in own.param_groups for tensor in group["params"]}
    expected = {id(one.tensor) for one in found if ".stack." in one.name and one.tensor.dim() == 2}
    assert taken == expected
    assert {name.partition("/")[0] for name in optimizer.state_dict()} == {one.name for one in found}


def test_rates_multiply_the_learning_rate_of_a_role() -> None:
    found = learned({"model": decoder()})
    optimizer = AdamW(lr=0.2, rates={"embed": 0.5, "gain": 2.0}).build(found)
    optimizer.step(0.1)
    rates = {one.role: group["lr"] for group in optimizer.steppers[0].param_groups for one in group["learned"]}
    assert rates["embed"] == pytest.approx(0.01) and rates["gain"] == pytest.approx(0.04)
    assert rates["out"] == pytest.approx(0.02)


def test_roles_in_one_tensor_must_learn_at_one_rate() -> None:
    found = learned({"model": decoder()})
    with pytest.raises(SpecError, match=r"rates: model\..* holds several roles .* query 1, key 0.5, value 1"):
        AdamW(rates={"key": 0.5}).build(found)
    AdamW(rates={"query": 0.5, "key": 0.5, "value": 0.5}).build(found)


def test_a_tensor_without_a_role_is_refused_by_name() -> None:
    with pytest.raises(SpecError, match=r"model.weight: is trainable but has no role"):
        learned({"model": nn.Linear(2, 2)})


def test_matrices_in_one_tensor_are_views_of_it() -> None:
    one = LearnedTensor("w", nn.Parameter(torch.zeros(6, 3)), "query", (("query", 4), ("key", 2)))
    with torch.no_grad():
        one.matrices(one.tensor)[1].fill_(1.0)
    assert one.tensor.sum(1).tolist() == [0, 0, 0, 0, 3, 3]
