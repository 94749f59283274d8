"""A decoder that begins where its encoder ended: the states that are handed over, layer by layer."""

from typing import Any

import pytest
import torch
from tests.conformance.translators import GRU, LSTM, branch, started, translator
from torch.utils._pytree import tree_leaves

from anyformer.core import Frame, Memory, Model, ModelSpec, PartSpec, Site, decode
from anyformer.errors import SpecError

SIZES = {"vocab": 11, "dim": 8, "max_len": 16}


def read(spec: ModelSpec) -> tuple[Any, Memory]:
    model: Model = spec.build(seed=0)
    tokens = torch.arange(8).view(2, 4)
    return model, model.encode(tokens, Frame(valid=torch.tensor([[True] * 4, [True] * 3 + [False]])))


@pytest.mark.row("RNN-09")
@pytest.mark.parametrize("direction", ["ahead", "back"])
def test_every_layer_begins_with_the_state_in_which_its_fellow_ended(direction: str) -> None:
    one_way = {"kind": "one_way", "part": LSTM, "direction": direction}
    model, memory = read(translator([branch(one_way)], [branch(started(LSTM))], **SIZES))
    state = model.init_state(2, 16, memory)
    assert len(memory.final) == 2
    for layer, ended in enumerate(memory.final):
        assert all(map(torch.equal, tree_leaves(state[layer][0].now), tree_leaves(ended)))
    last = torch.stack((memory.x[0, 3], memory.x[1, 2])) if direction == "ahead" else memory.x[:, 0]
    torch.testing.assert_close(memory.final[-1].h, last)  # of the last valid token that it read


@pytest.mark.row("RNN-09")
def test_the_first_word_is_all_that_is_added_to_the_encoders_state() -> None:
    model, memory = read(
        translator([branch({"kind": "one_way", "part": GRU})], [branch(started(GRU))], depth=1, **SIZES)
    )
    word = torch.tensor([[3], [5]])
    y = model(word, Frame(memory=memory), logits=False).y
    (ended,), (layer,) = memory.final, model.decoder.stack.calls()
    cell = layer.branches[0].part.part
    expected = cell(model.decoder._embed(word, Frame()), Frame(positions=torch.ones(2, 1, dtype=torch.long)), ended).y
    torch.testing.assert_close(y, expected)
    assert not torch.allclose(y, cell(model.decoder._embed(word, Frame()), Frame()).y)


@pytest.mark.row("RNN-09")
def test_nothing_but_the_final_state_crosses_over() -> None:
    model, memory = read(translator([branch({"kind": "one_way", "part": GRU})], [branch(started(GRU))], **SIZES))
    word = torch.tensor([[3, 4], [5, 6]])
    other = Memory(x=torch.randn_like(memory.x), final=memory.final)
    assert torch.equal(model(word, Frame(memory=memory)).y, model(word, Frame(memory=other)).y)


def test_two_directions_end_in_halves_of_one_state() -> None:
    both = {"kind": "bidirectional", "part": GRU}
    _, memory = read(translator([branch(both)], [branch(started(GRU))], depth=1, **SIZES))
    (ended,) = memory.final
    ahead, back = ended.chunk(2, dim=-1)
    torch.testing.assert_close(ahead[0], memory.x[0, 3, :4])
    torch.testing.assert_close(back, memory.x[:, 0, 4:])


def test_a_bridge_changes_the_width() -> None:
    spec = decode(PartSpec, started(GRU, bridge="project")).build(Site(dim=8, memory_dim=6))
    memory = Memory(x=torch.zeros(2, 1, 6), final=(torch.randn(2, 6),))
    assert spec.init_state(2, 4, memory).now.shape == (2, 8)
    with pytest.raises(SpecError, match="6 units, this part has 8"):
        decode(PartSpec, started(GRU)).build(Site(dim=8, memory_dim=6)).init_state(2, 4, memory)


def test_an_encoder_without_a_state_is_refused() -> None:
    part = decode(PartSpec, started(GRU)).build(Site(dim=8))
    with pytest.raises(SpecError, match="one_way or bidirectional"):
        part(torch.zeros(1, 2, 8), Frame(memory=Memory(x=torch.zeros(1, 2, 8))))
    with pytest.raises(SpecError, match="sums up"):
        decode(PartSpec, started({"kind": "attention"})).build(Site(dim=8))
