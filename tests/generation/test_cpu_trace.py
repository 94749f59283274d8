"""A tape makes the calls of the function that it recorded, in its order, and not one more."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from anyformer.generation.accelerate.cpu_trace import FlatFunction, record

WEIGHT = torch.arange(12.0).view(4, 3)
COUNT = torch.zeros(2)


class _Count(TorchFunctionMode):
    """How many calls of torch are made."""

    calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **kwargs or {})


def taped(function: Callable[..., Any], *inputs: Tensor) -> FlatFunction:
    _, tape = record(function, inputs)
    assert tape is not None
    return tape(*inputs)


def test_it_gives_what_the_function_gives_for_other_values() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        low, high = (x @ WEIGHT).split((1, 2), dim=-1)
        best = high.max(-1, keepdim=True)
        return torch.where(y > 0, low, best.values) * 1e-3, best.indices[..., : x.shape[-1]], y

    tape = taped(function, torch.ones(2, 4), torch.ones(2, 1))
    x, y = torch.randn(2, 4), torch.tensor([[1.0], [-1.0]])
    torch.testing.assert_close(tape(x, y), function(x, y))


def test_what_nobody_reads_and_what_was_made_before_is_left_out() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        x.exp().sum()
        return (x.cos() + 1) * (x.cos() + 1), x.cos()

    x = torch.ones(3)
    tape = taped(function, x)
    with _Count() as count:
        tape(x)
    assert count.calls == 3  # cos, +, *


def test_what_weights_alone_decide_is_computed_once() -> None:
    weight, x = torch.ones(3), torch.ones(3)
    _, tape = record(lambda x: (x * weight.exp().sum() + torch.arange(3),), (x,))
    assert tape is not None
    play = tape(x)
    with _Count() as count:
        play(x)
    assert count.calls == 2  # *, +
    weight.zero_()
    assert tape(x)(x)[0].equal(torch.tensor([3.0, 4.0, 5.0]))  # a text later


def test_a_write_between_two_equal_calls_keeps_them_apart() -> None:
    def function(x: Tensor, kept: Tensor) -> tuple[Tensor, ...]:
        before = kept.sum()
        kept[1:].add_(x)
        scratch, other = torch.zeros(2), torch.zeros(2)
        scratch += x
        return before, kept.sum(), scratch, other, kept

    _, tape = record(function, (torch.ones(2), torch.zeros(3)))
    kept, x = torch.ones(3), torch.tensor([2.0, 5.0])
    assert tape is not None
    before, after, scratch, other, same = tape(x, kept)(x, kept)
    assert (before, after) == (3.0, 10.0) and same is kept
    assert scratch.equal(x) and other.equal(torch.zeros(2))


def test_views_of_what_is_given_back_are_made_once_and_show_what_is_written_later() -> None:
    def function(x: Tensor, kept: Tensor) -> tuple[Tensor, ...]:
        kept.narrow(0, 1, 2).copy_(x)
        return kept.narrow(0, 1, 2).transpose(0, 1) @ x, kept

    _, tape = record(function, (torch.ones(2, 2), torch.zeros(3, 2)))
    x, kept = torch.randn(2, 2), torch.zeros(3, 2)
    assert tape is not None
    play = tape(x, kept)
    with _Count() as count:
        results = [play(factor * x, kept)[0] for factor in (1.0, 2.0)]
    assert count.calls == 2 * 3  # *, copy_, @
    torch.testing.assert_close(results, [x.T @ x, 4 * x.T @ x])


def test_tensors_that_change_places_are_looked_at_anew() -> None:
    def function(one: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        return one.narrow(0, 0, 1) + 0, other, one

    one, other = torch.zeros(2), torch.ones(2)
    _, tape = record(function, (one, other))
    assert tape is not None
    play, seen = tape(one, other), []
    for _ in range(3):
        value, one, other = play(one, other)
        seen.append(value.item())
    assert seen == [0.0, 1.0, 0.0]


def test_inputs_that_were_one_tensor_may_be_two_later() -> None:
    zero = torch.zeros(2)
    tape = taped(lambda x, y: (x - y,), zero, zero)
    assert tape(torch.ones(2), zero)[0].equal(torch.ones(2))


def test_what_is_compiled_is_recorded_as_if_it_were_not() -> None:
    compiled = torch.compile(lambda x: 2 * x.cos(), fullgraph=True, backend="aot_eager")
    x = torch.tensor([3.0, 4.0])
    assert taped(lambda x: (compiled(x),), torch.ones(2))(x)[0].equal(2 * x.cos())


def test_infinities_and_names_in_braces_are_kept() -> None:
    tape = taped(lambda x: (x.masked_fill(x > 0, -torch.inf).nan_to_num(neginf=2.0),), torch.ones(1))
    assert tape(torch.tensor([3.0]))[0].item() == 2.0


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * x.sum().item(),),
        lambda x: (x if x.sum() > 0 else -x,),
        lambda x: (x[: x.tolist()[0] > 0],),
        lambda x: (x + torch.rand(2),),
        lambda x: (x.bernoulli(),),
        lambda x: (x * len(x.nonzero()),),
        lambda x: (x * len(torch.where(x > 0)[0]),),
        lambda x: (x * len(x[x > 0]),),
        lambda x: (x * len(x.repeat_interleave(x.long())),),
        lambda x: (torch.vmap(torch.sin)(x),),
        lambda x: (COUNT[:1].add_(1) + x, x + COUNT.sum()),
    ],
    ids=["item", "branch", "list", "random", "draw", "nonzero", "where", "mask", "repeat", "vmap", "write"],
)
def test_what_depends_on_a_value_or_on_chance_or_changes_more_than_it_is_given_has_no_tape(
    function: Callable[..., Any],
) -> None:
    outputs, tape = record(function, (torch.ones(2),))
    assert tape is None and isinstance(outputs[0], Tensor)


def test_in_inference_mode_nothing_is_recorded() -> None:
    with torch.inference_mode():
        assert record(lambda x: (x.add_(1),), (torch.ones(2),))[1] is None
