"""A tape is replayed only where it is what a plain step would do: for these rows, this precision and these weights."""

import pytest
import torch
from tests.generation.small import SURE, stack, writer
from torch import Tensor

from anyformer.core import Model
from anyformer.generation.engine import Engine
from anyformer.models import Decoder
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.positions.learned import LearnedPosition


def scores(engine: Engine, prompts: list[list[int]], steps: int = 6) -> Tensor:
    """Of the next token after each step; more steps than are made before one is recorded."""
    decoding = engine.prefill(prompts)
    words = torch.arange(steps)[:, None].expand(-1, len(prompts))
    found = torch.stack([engine.step(decoding, each) for each in words])
    assert decoding.tape is not None
    return found


def fresh(model: Model) -> Engine:
    return Engine(model, max_len=32)


def test_a_model_that_keeps_nothing_may_have_more_or_fewer_rows() -> None:
    model = Decoder(vocab=23, dim=16, stack=stack(MLP()), position=LearnedPosition(), init=SURE).build()
    engine, prompts = fresh(model), [[1, 2], [3, 4], [5, 6]]
    for rows in (2, 1, 3):
        torch.testing.assert_close(scores(engine, prompts[:rows]), scores(fresh(model), prompts[:rows]))


@pytest.mark.parametrize("first", [True, False], ids=["with autocast first", "without first"])
def test_one_engine_writes_with_autocast_and_without(first: bool) -> None:
    model = writer()
    engine = fresh(model)
    for enabled in (first, not first):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            torch.testing.assert_close(scores(engine, [[1, 2]]), scores(fresh(model), [[1, 2]]))


def test_other_weights_in_the_place_of_old_ones_are_used() -> None:
    model, other = writer(), writer(seed=5)
    engine = fresh(model)
    scores(engine, [[1, 2]])
    model.load_state_dict(other.state_dict(), assign=True)
    torch.testing.assert_close(scores(engine, [[1, 2]]), scores(fresh(other), [[1, 2]]))
