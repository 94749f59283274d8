"""A trace is replayed only where it equals an eager step: for these rows, this precision and these weights."""

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
    """Logits after each step; more steps than are eager before one is traced."""
    decoding, calls, forward = engine.prefill(prompts), [], engine.model.forward
    engine.model.forward = lambda *args: (calls.append(1), forward(*args))[1]  # type: ignore[method-assign]
    tokens = torch.arange(steps)[:, None].expand(-1, len(prompts))
    logits = torch.stack([engine.step(decoding, each) for each in tokens])
    engine.model.forward = forward  # type: ignore[method-assign]
    assert len(calls) < steps  # the others were replayed
    return logits


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


def test_two_decodings_are_replayed_in_turns() -> None:
    engine, token = fresh(writer()), torch.tensor([4])
    expected = scores(fresh(engine.model), [[9, 2]], 12)
    scores(engine, [[1, 2]])
    one, two = engine.prefill([[3, 1]]), engine.prefill([[9, 2]])
    for step in range(12):
        engine.step(one, token)
        torch.testing.assert_close(engine.step(two, torch.tensor([step])), expected[step], rtol=1e-4, atol=1e-4)
