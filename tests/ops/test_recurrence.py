"""The fused kernels against the cells, step by step: padding anywhere, packed documents, a state to go on from."""

from collections.abc import Sequence
from itertools import chain, combinations, pairwise

import pytest
import torch
from torch import Tensor

from anyformer.ops.recurrence import cells as recurrence
from anyformer.ops.recurrence.cells import GRU_CELL, LSTM_CELL, RNN_CELL, Carry, Cell, Weights, recur, recur_loop

B, T, D, N = 5, 23, 5, 7
every_cell = pytest.mark.parametrize("cell", [RNN_CELL, LSTM_CELL, GRU_CELL], ids=["rnn", "lstm", "gru"])
Marks = tuple[Tensor | None, Tensor | None]


def random_weights(cell: Cell, dtype: torch.dtype = torch.float64) -> Weights:
    shapes = (cell.gates * N, D), (cell.gates * N, N), (cell.gates * N,), (cell.gates * N,)
    return Weights(*((0.5 * torch.randn(*shape, dtype=dtype)).requires_grad_() for shape in shapes))


def random_start(cell: Cell, dtype: torch.dtype = torch.float64) -> Carry:
    return tuple(torch.randn(B, N, dtype=dtype, requires_grad=True) for _ in range(cell.carries))


def layout(name: str) -> Marks:
    """(valid, begins)"""
    rng, right = torch.Generator().manual_seed(5), torch.arange(T) < torch.tensor([23, 1, 0, 12, 11])[:, None]
    holes, begins = (torch.rand(B, T, generator=rng) < share for share in (0.7, 0.2))
    layouts: dict[str, Marks] = {
        "plain": (None, None),
        "right": (right, None),
        "left": (right.flip(1), None),
        "holes": (holes & (torch.arange(B) != 3)[:, None], None),
        "first": (None, torch.arange(T).expand(B, -1) == 0),
        "packed": (None, begins),
        "packed_with_holes": (holes, begins & holes),
    }
    return layouts[name]


def results(run: object, cell: Cell, weights: Weights, x: Tensor, start: Carry | None, marks: Marks) -> list[Tensor]:
    """Outputs, the carry where one is asked for, and the gradients of all that went in."""
    y, last = run(cell, weights, x, start, *marks)  # type: ignore[operator]
    out = [y, *(last if start else ())]
    rng = torch.Generator().manual_seed(1)
    score = sum((leaf * torch.randn(leaf.shape, generator=rng, dtype=leaf.dtype)).sum() for leaf in out)
    assert isinstance(score, Tensor)
    return [*out, *torch.autograd.grad(score, [x, *(w for w in weights if w is not None), *(start or ())])]


@pytest.mark.row("RNN-01", clause="starts from h_0 = 0 or from a given state")
@every_cell
@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("name", ["plain", "right", "left", "holes", "first", "packed", "packed_with_holes"])
def test_the_fused_way_is_the_loop(cell: Cell, name: str, stateful: bool) -> None:
    weights, x = random_weights(cell), torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)
    given = cell, weights, x, random_start(cell) if stateful else None, layout(name)
    for mine, other in zip(results(recur, *given), results(recur_loop, *given), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-12, rtol=1e-10)


@every_cell
def test_in_single_precision_too(cell: Cell) -> None:
    weights, x = random_weights(cell, torch.float32), torch.randn(B, T, D, requires_grad=True)
    given = cell, weights, x, random_start(cell, torch.float32), layout("packed_with_holes")
    for mine, other in zip(results(recur, *given), results(recur_loop, *given), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-4)


@every_cell
def test_biases_may_be_missing(cell: Cell) -> None:
    x, weights = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True), random_weights(cell)
    for bare in (weights._replace(input_bias=None, recurrent_bias=None), weights._replace(recurrent_bias=None)):
        for mine, other in zip(
            results(recur, cell, bare, x, None, layout("right")),
            results(recur_loop, cell, bare, x, None, layout("right")),
            strict=True,
        ):
            torch.testing.assert_close(mine, other)


def test_a_row_of_padding_keeps_its_state() -> None:
    weights, start = random_weights(LSTM_CELL), random_start(LSTM_CELL)
    x, valid = torch.randn(B, T, D, dtype=torch.float64), torch.zeros(B, T, dtype=torch.bool)
    y, last = recur(LSTM_CELL, weights, x, start, valid)
    assert last is not None and all(map(torch.equal, last, start))
    assert not y.any()


@pytest.mark.parametrize("idle", [0, 1, 8, 128])
def test_groups_take_about_as_little_time_as_any_others_would(idle: int) -> None:
    lengths = [100, 90, 51, 50, 49, 26, 25, 3, 2, 1]

    def steps(groups: Sequence[list[int]]) -> int:
        return sum(group[0] * (idle + len(group)) for group in groups)

    def cut_at(places: tuple[int, ...]) -> list[list[int]]:
        return [lengths[start:end] for start, end in pairwise((0, *places, len(lengths)))]

    found = [lengths[part] for part in recurrence._cuts(torch.tensor(lengths), idle)]
    assert [*chain(*found)] == lengths
    every = (cut_at(places) for count in range(len(lengths)) for places in combinations(range(1, len(lengths)), count))
    assert steps(found) <= 1.02 * min(map(steps, every))
    assert list(recurrence._cuts(torch.tensor([]), idle)) == []


@pytest.mark.parametrize("room", [291, 600, 2000])
def test_rows_are_filled_up_no_further_than_there_is_room(room: int) -> None:
    lengths = torch.tensor([100, 51, 50, 30, 20, 10, *[1] * 30])
    parts = recurrence._fitting(lengths, 128, room)
    places = sum(int(lengths[part][0]) * len(lengths[part]) for part in parts)
    assert places <= room and sum(len(lengths[part]) for part in parts) == len(lengths)
    assert len(parts) == {291: 7, 600: 3, 2000: 2}[room]


@every_cell
def test_on_the_meta_device_there_are_shapes(cell: Cell) -> None:
    weights = Weights(*(weight.to("meta") for weight in random_weights(cell) if weight is not None))
    x = torch.zeros(B, T, D, device="meta", requires_grad=True)
    y, last = recur(cell, weights, x)
    assert y.shape == (B, T, N) and y.requires_grad and last is None


@every_cell
def test_on_the_meta_device_as_much_is_kept_for_the_backward_pass_as_a_kernel_keeps(cell: Cell) -> None:
    weights = Weights(*(weight.to("meta") for weight in random_weights(cell) if weight is not None))
    x = torch.zeros(B, T, D, device="meta", requires_grad=True)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()), lambda _: None):
        recur(cell, weights, x)
    assert kept == [B * T * D, B * T * N, B * T * N * cell.saved]
