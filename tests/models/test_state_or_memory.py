"""A state is what is carried from token to token; the output of an encoder is a memory, and has another name."""

import re
from pathlib import Path
from typing import get_type_hints

import pytest
import torch
from tests.viewing.small import DIM, built, decoder, encoder

from anyformer.core import Frame, Memory, Model, Out, nbytes
from anyformer.models import EncoderDecoder
from anyformer.parts.combine.unidirectional import Unidirectional
from anyformer.parts.mixers.gru import GRU

NAMES = pytest.mark.row("CLM-32", clause="documented API names tell a state from an encoder output")
GLOSSARY = Path(__file__).parents[2] / "docs/glossary.md"


@NAMES
@pytest.mark.row("CLM-32", clause="encoder output is one vector per token, not a fixed-size state")
def test_an_encoder_gives_a_memory_that_grows_with_the_source_and_a_recurrence_a_state_that_does_not() -> None:
    model = built(EncoderDecoder(encoder=encoder(Unidirectional(part=GRU())), decoder=decoder(GRU())))
    memories = {length: model.encode(torch.zeros(1, length, dtype=torch.long)) for length in (3, 7)}
    for length, memory in memories.items():
        assert isinstance(memory, Memory) and memory.x.shape == (1, length, DIM)
    short, long = memories.values()
    states = [model.init_state(1, 32, memory) for memory in (short, long)]
    assert nbytes(states[0]) == nbytes(states[1]) == nbytes(model.init_state(1, 64, long)) > 0
    out = model(torch.zeros(1, 1, dtype=torch.long), Frame(memory=long, positions=torch.zeros(1, 1).long()), states[1])
    assert nbytes(out.state) == nbytes(states[1]) and not isinstance(out.state, Memory)


@NAMES
def test_the_two_have_names_of_their_own_in_signatures_and_in_the_glossary() -> None:
    terms = dict(re.findall(r"^\| \*\*(State|Memory)\*\* \| (.*) \|$", GLOSSARY.read_text(), re.MULTILINE))
    assert "one vector for each source token" in terms["Memory"] and "not a state" in terms["Memory"]
    assert "from one call to the next" in terms["State"] and "fixed size" in terms["State"]
    assert "one vector for each source token, which is not a state" in (Memory.__doc__ or "")
    assert get_type_hints(Model.encode)["return"] is Memory and "one vector for each" in (Model.encode.__doc__ or "")
    assert "state" in Out._fields and "state" not in get_type_hints(Memory)
