"""Averages of weights, along a run and of stored ones."""

import weakref
from collections.abc import Iterator

import pytest
import torch
from tests.optim.moving import noise
from torch import Tensor

from anyformer.errors import CheckpointError
from anyformer.optim import Ema, average


def walk(tensor: Tensor, step: int) -> None:
    tensor.copy_(noise(tuple(tensor.shape), step).to(tensor.dtype))


def test_the_moving_average_is_its_closed_form() -> None:
    tensor = noise((3, 4), 100).double()
    ema, expected = Ema({"w": tensor}, 0.6), tensor.clone()
    for step in range(20):
        walk(tensor, step)
        ema.update()
        rate = min(0.6, (1 + step) / (10 + step))
        expected = rate * expected + (1 - rate) * tensor
    torch.testing.assert_close(ema.averages["w"], expected, atol=1e-12, rtol=0)


def test_inside_swapped_the_averages_stand_in_and_after_an_error_they_are_gone() -> None:
    tensor = torch.nn.Parameter(noise((5,), 0))
    ema = Ema({"w": tensor}, 0.9)
    with torch.no_grad():
        tensor.add_(1.0)
    own, mean = tensor.detach().clone(), ema.averages["w"].clone()
    with pytest.raises(RuntimeError, match="stop"), ema.swapped():
        assert torch.equal(tensor, mean)
        raise RuntimeError("stop")
    assert torch.equal(tensor, own) and torch.equal(ema.averages["w"], mean)


def test_a_stored_average_goes_on_bit_by_bit() -> None:
    tensor = noise((3, 4), 100)
    through = Ema({"w": tensor}, 0.99)
    for step in range(10):
        walk(tensor, step)
        through.update()
    resumed = Ema({"w": tensor}, 0.99)
    resumed.load_state_dict({name: value.clone() for name, value in through.state_dict().items()})
    walk(tensor, 11)
    for ema in (through, resumed):
        ema.update()
    assert resumed.updates == 11 and torch.equal(through.averages["w"], resumed.averages["w"])


def test_an_average_that_does_not_fit_is_refused() -> None:
    ema = Ema({"w": torch.zeros(2)}, 0.9)
    with pytest.raises(CheckpointError, match=r"w has shape \(3,\), not \(2,\)"):
        ema.load_state_dict({"w": torch.ones(3), "updates": torch.tensor(4)})
    assert ema.updates == 0


@pytest.mark.row("OPT-03", clause="every averaged weight equals the mean over the checkpoints")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_mean_of_checkpoints_is_the_mean_of_their_tensors(dtype: torch.dtype) -> None:
    stored = [{"w": noise((6, 5), seed).to(dtype), "steps": torch.tensor(seed)} for seed in range(20)]
    mean = average(iter(stored))
    exact = torch.stack([state["w"].double() for state in stored]).mean(0)
    assert mean["w"].dtype == dtype and mean["steps"] == 19
    torch.testing.assert_close(mean["w"], exact.to(dtype), atol=1e-7, rtol=torch.finfo(dtype).eps)


@pytest.mark.row("OPT-03")
def test_checkpoints_are_read_one_after_the_other() -> None:
    alive: list[weakref.ref[Tensor]] = []

    def stored() -> Iterator[dict[str, Tensor]]:
        for seed in range(6):
            assert sum(tensor() is not None for tensor in alive) <= 1
            state = {"w": noise((6, 5), seed)}
            alive.append(weakref.ref(state["w"]))
            yield state
            del state

    average(stored())
    assert len(alive) == 6


def test_checkpoints_of_different_models_have_no_mean() -> None:
    with pytest.raises(CheckpointError, match=r"v is missing\nw is unexpected"):
        average([{"v": torch.zeros(2)}, {"w": torch.zeros(2)}])
    with pytest.raises(CheckpointError, match="nothing to average"):
        average([])
