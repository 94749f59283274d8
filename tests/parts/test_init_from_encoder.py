"""A decoder that begins where its encoder ended: the states that are handed over, layer by layer."""

import re
from typing import Any

import pytest
import torch
from tests.conformance.translators import GRU, LSTM, branch, from_encoder, translator
from torch.utils._pytree import tree_leaves

from anyformer.core import Frame, Memory, Model, ModelSpec, reorder
from anyformer.errors import SpecError

SIZES = {"vocab": 11, "dim": 8, "max_len": 16}


def read(spec: ModelSpec) -> tuple[Any, Memory]:
    model: Model = spec.build(seed=0)
    tokens = torch.arange(8).view(2, 4)
    return model, model.encode(tokens, Frame(valid=torch.tensor([[True] * 4, [True] * 3 + [False]])))


@pytest.mark.row("CLM-05", clause="what passes through the last encoder state is limited by d")
@pytest.mark.row("RNN-09", clause="the decoder's initial state equals the encoder's final state")
@pytest.mark.parametrize("direction", ["ahead", "back"])
def test_every_layer_begins_with_the_state_in_which_its_fellow_ended(direction: str) -> None:
    ahead = {"kind": "unidirectional", "part": LSTM, "direction": direction}
    model, memory = read(translator([branch(ahead)], [branch(from_encoder(LSTM))], **SIZES))
    state = model.init_state(2, 16, memory)
    assert len(memory.final) == 2
    for layer, ended in enumerate(memory.final):
        assert all(map(torch.equal, tree_leaves(state[layer][0].now), tree_leaves(ended)))
    last = torch.stack((memory.x[0, 3], memory.x[1, 2])) if direction == "ahead" else memory.x[:, 0]
    torch.testing.assert_close(memory.final[-1].h, last)  # of the last valid token that it read


@pytest.mark.row("RNN-09", clause="the decoder's initial state equals the encoder's final state")
def test_the_first_word_is_all_that_is_added_to_the_encoders_state() -> None:
    model, memory = read(translator([ahead(GRU)], [branch(from_encoder(GRU))], depth=1, **SIZES))
    word = torch.tensor([[3], [5]])
    y = model(word, Frame(memory=memory), logits=False).y
    (ended,), (layer,) = memory.final, model.decoder.stack.calls()
    cell = layer.branches[0].part.part
    expected = cell(
        model.decoder._embed(word, Frame())[0], Frame(positions=torch.ones(2, 1, dtype=torch.long)), ended
    ).y
    torch.testing.assert_close(y, expected)
    assert not torch.allclose(y, cell(model.decoder._embed(word, Frame())[0], Frame()).y)


@pytest.mark.row("CLM-05", clause="what passes through the last encoder state is limited by d")
@pytest.mark.row("RNN-09")
def test_nothing_but_the_final_state_crosses_over() -> None:
    model, memory = read(translator([ahead(GRU)], [branch(from_encoder(GRU))], **SIZES))
    word = torch.tensor([[3, 4], [5, 6]])
    other = Memory(x=torch.randn_like(memory.x), final=memory.final)
    assert torch.equal(model(word, Frame(memory=memory)).y, model(word, Frame(memory=other)).y)


@pytest.mark.row("RNN-09", clause="what passes from encoder to decoder has one size for every T")
@pytest.mark.parametrize("cell", [GRU, LSTM], ids=["gru", "lstm"])
def test_a_long_source_hands_over_no_more_than_a_short_one(cell: Any) -> None:
    model: Any = translator([ahead(cell)], [branch(from_encoder(cell))], **{**SIZES, "max_len": 64}).build(seed=0)
    short, long = (model.encode(torch.randint(11, (2, length)), Frame()) for length in (4, 40))
    word, sizes = torch.tensor([[3], [5]]), []
    for memory in (short, long):
        alone = Memory(x=torch.randn_like(memory.x), final=memory.final)
        assert torch.equal(model(word, Frame(memory=memory)).y, model(word, Frame(memory=alone)).y)
        sizes.append([leaf.shape for leaf in tree_leaves((memory.final, model.init_state(2, 8, memory)))])
    assert sizes[0] == sizes[1] and sizes[0]


def test_two_directions_end_in_halves_of_one_state() -> None:
    both = {"kind": "bidirectional", "part": GRU}
    _, memory = read(translator([branch(both)], [branch(from_encoder(GRU))], depth=1, **SIZES))
    (ended,) = memory.final
    ahead, back = ended.chunk(2, dim=-1)
    torch.testing.assert_close(ahead[0], memory.x[0, 3, :4])
    torch.testing.assert_close(back, memory.x[:, 0, 4:])


def test_writing_rows_into_a_fresh_state_keeps_all_layers_and_the_source() -> None:
    spec = translator(
        [ahead(GRU)],
        [branch(from_encoder(GRU)), branch(from_encoder(GRU))],
        **SIZES,
    )
    model, memory = read(spec)
    with torch.no_grad():
        ended = [state.clone() for state in memory.final]
        state = model.init_state(2, 6, memory)
        state = model(torch.ones(2, 3, dtype=torch.long), Frame(positions=torch.arange(3).expand(2, -1)), state).state
        rows = reorder(state, torch.tensor([0, 1]), into=model.init_state(2, 6, memory))
    assert all(map(torch.equal, tree_leaves(rows), tree_leaves(state)))
    assert all(map(torch.equal, memory.final, ended))


WIDE = {**GRU, "hidden": 12}


def ahead(part: Any) -> Any:
    return branch({"kind": "unidirectional", "part": part})


@pytest.mark.parametrize(
    "reads",
    [
        {"kind": "unidirectional", "part": WIDE},
        {"kind": "bidirectional", "part": GRU, "merge": "project"},
        {"kind": "bidirectional", "part": WIDE, "merge": "sum"},
        {"kind": "fast_forward", "part": {"kind": "unidirectional", "part": GRU}},
        {
            "kind": "scalar_mix",
            "parts": [{"kind": "unidirectional", "part": GRU}, {"kind": "unidirectional", "part": WIDE}],
        },
        {"kind": "shared", "tag": "one", "part": {"kind": "unidirectional", "part": WIDE}},
    ],
    ids=["hidden", "both_projected", "summed", "half", "mixed", "shared"],
)
def test_a_bridge_fits_whatever_width_the_encoder_ends_with(reads: Any) -> None:
    model, memory = read(translator([branch(reads)], [branch(from_encoder(GRU, bridge="project"))], **SIZES))
    assert memory.final[-1].shape[1] == model.decoder.stack.calls()[-1].branches[0].part.bridges[0].weight.shape[1]
    assert model(torch.ones(2, 3, dtype=torch.long), Frame(memory=memory)).y.isfinite().all()


def test_with_two_recurrences_a_layer_the_last_of_the_same_layer_is_taken() -> None:
    model, memory = read(translator([ahead(GRU), ahead(GRU)], [branch(from_encoder(GRU))], **SIZES))
    first, second = (layer[0].now for layer in model.init_state(2, 16, memory))
    assert torch.equal(first, memory.final[1]) and torch.equal(second, memory.final[3])


def test_a_layer_whose_fellow_has_no_recurrence_begins_with_the_last_state() -> None:
    blocks = {"plain": {"branches": [{"part": {"kind": "mlp"}}]}, "reads": {"branches": [ahead(GRU)]}}
    spec = translator([ahead(GRU)], [branch(from_encoder(GRU))], **SIZES).with_("encoder.stack.blocks", blocks)
    model, memory = read(spec)
    assert all(torch.equal(layer[0].now, memory.final[0]) for layer in model.init_state(2, 16, memory))


@pytest.mark.parametrize(
    ("encoder", "decoder", "rule"),
    [
        ([ahead(WIDE)], from_encoder(GRU), "ends with 12 units, gru has 8. Make them equal"),
        ([ahead(LSTM)], from_encoder(GRU, bridge="project"), "has 2 vectors, the state of gru has 1. Use the same"),
        ([{"part": {"kind": "attention"}}], from_encoder(GRU), "unidirectional or bidirectional"),
        ([ahead(GRU)], from_encoder({"kind": "attention"}), "attention has no recurrent state to initialise"),
        ([ahead(GRU)], from_encoder(from_encoder(GRU)), "init_from_encoder inside init_from_encoder"),
    ],
)
def test_what_does_not_fit_is_refused_when_built_with_its_key(encoder: Any, decoder: Any, rule: str) -> None:
    where = re.escape("decoder.stack.blocks.layer.branches[0].part: ")
    with pytest.raises(SpecError, match=where + ".*" + re.escape(rule)):
        translator(encoder, [branch(decoder)], **SIZES).build(device="meta")
