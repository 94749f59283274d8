"""Adafactor against Hugging Face's and torch's, where these agree with its definition."""

import pytest
import torch
import transformers
from tests.optim.moving import assert_same, decayed_and_not, move, move_theirs, parameters, scheduled, set_gradients
from torch import nn

from anyformer.optim import Adafactor, InverseSquareRoot, LearnedTensor


@pytest.mark.row(
    "OPT-04",
    clause=(
        "second moments are kept as row and column moving averages",
        "the decay of the moments is beta2_t = 1 - t^-0.8",
        "the RMS of an update is clipped to 1",
        "there is no momentum",
        "trajectories equal torch.optim.Adafactor or transformers.Adafactor",
    ),
)
@pytest.mark.parametrize("lr, clip", [(0.01, 1.0), (0.1, 0.3)])
def test_adafactor_is_hugging_faces(lr: float, clip: float) -> None:
    ours, theirs = parameters(), parameters()
    move(Adafactor(lr=lr, clip=clip, factored_from=1).build(ours), ours)
    options = {"lr": lr, "clip_threshold": clip, "relative_step": False, "scale_parameter": True}
    reference = transformers.Adafactor([one.tensor for one in theirs], **options)
    move_theirs(scheduled(reference), [one.tensor for one in theirs])
    assert_same(ours, theirs)


@pytest.mark.row("OPT-04", clause="the update is scaled by max(1e-3, RMS(weight)): lr is relative")
@pytest.mark.parametrize("size", [0.0, 1e-5, 10.0])
def test_tiny_weights_move_as_if_their_size_were_a_thousandth(size: float) -> None:
    ours, theirs = parameters(), parameters()
    for one in (*ours, *theirs):
        one.tensor.data.mul_(size)
    move(Adafactor(lr=0.01, factored_from=1).build(ours), ours)
    options = {"lr": 0.01, "relative_step": False, "scale_parameter": True}
    move_theirs(
        scheduled(transformers.Adafactor([one.tensor for one in theirs], **options)), [one.tensor for one in theirs]
    )
    assert_same(ours, theirs, atol=1e-8 if size < 1 else 1e-5)
    if not size:
        assert all(1e-5 < one.tensor.square().mean().sqrt() < 25e-5 for one in ours)


@pytest.mark.row("OPT-04", clause="trajectories equal torch.optim.Adafactor or transformers.Adafactor")
def test_adafactor_with_decay_is_torchs() -> None:
    ours, theirs = parameters(), parameters()
    move(Adafactor(lr=0.05, weight_decay=0.3, factored_from=1).build(ours), ours)
    reference = torch.optim.Adafactor(decayed_and_not(theirs, 0.3), lr=0.05, eps=(1e-15, 1e-3), foreach=False)
    move_theirs(scheduled(reference), [one.tensor for one in theirs])
    assert_same(ours, theirs)


@pytest.mark.row(
    "OPT-04",
    clause=(
        "second moments are kept as row and column moving averages",
        "only dimensions of 128 or more are factored",
        "there is no momentum",
        "the state of an r x c matrix takes O(r + c) memory",
    ),
)
def test_only_matrices_of_128_and_more_are_factored() -> None:
    shapes = {"large": (128, 300), "flat": (127, 300), "vector": (500,)}
    moved = [LearnedTensor(name, nn.Parameter(torch.ones(shape)), "in") for name, shape in shapes.items()]
    sizes = {name: tensor.numel() for name, tensor in Adafactor().build(moved).state_dict().items()}
    assert sizes == {
        "large/step": 1,
        "large/row_var": 128,
        "large/col_var": 300,
        "flat/step": 1,
        "flat/variance": 127 * 300,
        "vector/step": 1,
        "vector/variance": 500,
    }


@pytest.mark.row("OPT-04")
def test_a_matrix_that_is_not_factored_keeps_every_number() -> None:
    ours, theirs = parameters()[:1], parameters()[:1]
    move(Adafactor().build(ours), ours)
    flat = nn.Parameter(theirs[0].tensor.detach().flatten())
    reference = scheduled(transformers.Adafactor([flat], lr=0.01, relative_step=False, scale_parameter=True))

    def step_by(factor: float) -> None:
        flat.grad = theirs[0].tensor.grad.flatten()
        reference(factor)

    move_theirs(step_by, [theirs[0].tensor])
    torch.testing.assert_close(ours[0].tensor.flatten(), flat, atol=1e-6, rtol=1e-6)


@pytest.mark.row("OPT-05", clause="the rsqrt rate is relative to RMS(weight) under Adafactor")
@pytest.mark.row("NAR-00", clause="optimiser is Adafactor with the rate 1/sqrt(max(n, 10^4))")
def test_steps_are_relative_to_the_weights_at_t5s_rate() -> None:
    small, large = (LearnedTensor("w", nn.Parameter(torch.full((4, 4), size)), "in") for size in (0.5, 50.0))
    schedule = InverseSquareRoot()
    for one in (small, large):
        before = one.tensor.detach().clone()
        optimizer = Adafactor(lr=0.01).build([one])
        set_gradients([one.tensor], 0)
        optimizer.step(schedule.factor(40_000, 10**6))
        moved = (one.tensor - before).square().mean().sqrt()
        torch.testing.assert_close(moved / before.mean(), torch.tensor(40_000**-0.5), atol=0, rtol=1e-3)
