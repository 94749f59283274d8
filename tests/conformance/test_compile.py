"""Every kind compiles to one graph, for training and for decoding; the slow suite runs what inductor made of it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.conformance.probes import near
from tests.conformance.subjects import Subject, placed, slots, slots_of, subjects_of, wholes
from torch import Tensor
from torch._dynamo.utils import counters

from anyformer.core import Frame, HeadSpec, InitSpec, Memory, Model, ModelSpec, PartSpec, PoolSpec
from anyformer.models import Block, Stack

pytestmark = pytest.mark.compile


UNSEEN = InitSpec.__name__
"""What weights are at the start: no graph shows it."""
AFTERWARDS = (HeadSpec.__name__, PoolSpec.__name__)
"""Steps are asked for hidden states, which these do not touch."""


def _one_of_each_kind() -> list[str]:
    """Each kind once: compiling is slow, and a graph breaks in the first branch of its kind or in none."""
    kinds = {slot.kind for slot in slots().values() if not slot.name.startswith(UNSEEN)}
    return [*sorted(f"{kind.family.__name__}/{kind.kind}" for kind in kinds), *wholes()]


def _candidates(name: str) -> Iterator[Subject]:
    """The models of a kind, built one by one: many need only the first."""
    if name in wholes():
        yield wholes()[name]
        return
    kind = next(slot.kind for slot in slots().values() if f"{slot.kind.family.__name__}/{slot.kind.kind}" == name)
    subjects = (placed(slot) for slot in slots_of(kind))
    yield from (subject for subject in subjects if isinstance(subject, Subject))
    assert subjects_of(kind)


def _compiling(name: str) -> Subject | None:
    """The first model of a kind that compiles, shallow."""
    return next((subject.shallow for subject in _candidates(name) if "compile" not in subject.limits), None)


def _subject(name: str) -> Subject:
    subject = _compiling(name)
    if subject is None:
        pytest.skip(next(_candidates(name)).limits["compile"])
    return subject


def _decoding(name: str) -> Subject:
    subject = _subject(name)
    if not subject.causal or {"state", "chunks"} & set(subject.limits):
        pytest.skip("does not decode step by step")
    return subject


COMPILING = _one_of_each_kind()
DECODING = [name for name in COMPILING if not name.startswith(AFTERWARDS)]


def _fast_if(name: str, *prefixes: str) -> Any:
    """In the fast suite if the name starts so, else in the slow one: compiling takes most of a second for each."""
    return pytest.param(name, marks=() if name.startswith(prefixes) else pytest.mark.slow)


WHOLES = ("whole/bahdanau", "whole/encoder_decoder", "whole/shared")
"""A recurrent and a Transformer translator, and one block for all layers: the wholes that differ most."""


PARTS = [name for name in COMPILING if name.startswith(PartSpec.__name__)]
GROUPS = 4
"""Tests that share the parts among them: half of what one part takes is the model around it."""


@pytest.mark.parametrize("group", range(GROUPS))
def test_training_of_every_part_is_one_graph(group: int) -> None:
    """Parts of decoders as the branches of one layer, parts of encoders likewise; parts of translators alone."""
    layers: dict[type[ModelSpec], list[Subject]] = {}
    for name in PARTS[group::GROUPS]:
        subject = _compiling(name)
        if subject and subject.spec.needs_source:
            _train(subject, "eager", length=8)
        elif subject:
            layers.setdefault(type(subject.spec), []).append(subject)
    for subjects in layers.values():
        branches = tuple(subject.spec.stack.blocks["layer"].branches[0] for subject in subjects)
        stack = Stack(blocks={"layer": Block(branches=branches)}, depth=1)
        _train(Subject("group", replace(subjects[0].spec, stack=stack)), "eager", length=8)


@pytest.mark.parametrize("name", [_fast_if(name, *WHOLES) for name in COMPILING])
def test_training_is_one_graph(name: str) -> None:
    _train(_subject(name), "eager")


@pytest.mark.parametrize("name", [_fast_if(name, *WHOLES) for name in DECODING])
def test_decoding_is_one_graph_for_all_steps(name: str) -> None:
    _decode(_decoding(name), "eager")


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILING)
def test_inductor_trains_to_the_same_numbers(name: str) -> None:
    _train(_subject(name), "inductor")


@pytest.mark.slow
@pytest.mark.parametrize("name", DECODING)
def test_inductor_decodes_to_the_same_numbers(name: str) -> None:
    _decode(_decoding(name), "inductor")


def _reset() -> None:
    torch._dynamo.reset()
    counters.clear()


def _train(subject: Subject, backend: str, length: int = 14) -> None:
    """Parts that loop over tokens are traced once for each of them."""
    _reset()
    eager, model = subject.fresh().train(), subject.fresh().train()
    compiled: Any = torch.compile(_loss, fullgraph=True, backend=backend)
    tokens, given = subject.tokens(length=length), subject.given(3)
    _loss(eager, tokens, given).backward()
    compiled(model, tokens, given).backward()
    assert counters["stats"]["unique_graphs"] == 1
    for mine, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None
        near(mine.grad, theirs.grad, 1e-4)


def _loss(model: Model, tokens: Tensor, given: Memory | Tensor) -> Tensor:
    memory = model.encode(given, Frame()) if isinstance(given, Tensor) else given
    return model(tokens, Frame(memory=memory)).y.square().mean()


def _decode(subject: Subject, backend: str) -> None:
    _reset()
    compiled: Any = torch.compile(subject.fresh(), fullgraph=True, backend=backend)
    with torch.no_grad():
        tokens, state, pieces = subject.tokens(), subject.state(3), []
        for at in range(4):
            frame = Frame(positions=torch.full((3, 1), at))
            out = compiled(tokens[:, at : at + 1].clone(), frame, state, logits=False)
            state = out.state
            pieces.append(out.y.clone())
        near(torch.cat(pieces, dim=1), subject.run(tokens)[:, :4])
    assert counters["stats"]["unique_graphs"] == 1
