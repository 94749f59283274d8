"""Schedules against Hugging Face's step by step, or against the closed form; and at their corners."""

from math import sqrt
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from anyformer.core import decode
from anyformer.errors import SpecError
from anyformer.optim import (
    Constant,
    Cosine,
    InverseSquareRoot,
    LinearSchedule,
    Noam,
    ScheduleSpec,
    SlantedTriangular,
    WarmupStableDecay,
)

TOTAL, WARMUP = 60, 7
every_kind = pytest.mark.parametrize("kind", sorted(ScheduleSpec.kinds))


def theirs(name: str, **options: Any) -> list[float]:
    """What Hugging Face's schedule gives each of the updates."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = getattr(transformers, f"get_{name}")(optimizer, **options)
    rates = []
    for _ in range(TOTAL):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return rates


def ours(schedule: ScheduleSpec, total: int = TOTAL) -> list[float]:
    return [schedule.factor(step, total) for step in range(total)]


PLAIN = {"num_warmup_steps": WARMUP}
PLANNED = {**PLAIN, "num_training_steps": TOTAL}
WSD = {**PLANNED, "num_decay_steps": 12}


@pytest.mark.row("OPT-05", clause="linear warm-up: closed-form values at given steps")
@pytest.mark.parametrize(
    "schedule, name, options",
    [
        (Constant(), "constant_schedule", {}),
        (Constant(warmup=WARMUP), "constant_schedule_with_warmup", PLAIN),
        (LinearSchedule(warmup=WARMUP), "linear_schedule_with_warmup", PLANNED),
        (LinearSchedule(warmup=WARMUP, floor=0.2), "polynomial_decay_schedule_with_warmup", {**PLANNED, "lr_end": 0.2}),
        (Cosine(warmup=WARMUP, floor=0.0), "cosine_schedule_with_warmup", PLANNED),
        (Cosine(warmup=WARMUP, floor=0.3), "cosine_with_min_lr_schedule_with_warmup", {**PLANNED, "min_lr_rate": 0.3}),
        (InverseSquareRoot(warmup=WARMUP, hold=WARMUP), "inverse_sqrt_schedule", PLAIN),
        (WarmupStableDecay(warmup=WARMUP, decay=12, shape="linear"), "wsd_schedule", {**WSD, "decay_type": "linear"}),
        (WarmupStableDecay(warmup=WARMUP, decay=12, shape="cosine"), "wsd_schedule", {**WSD, "decay_type": "cosine"}),
        (WarmupStableDecay(warmup=WARMUP, decay=12, shape="root"), "wsd_schedule", {**WSD, "decay_type": "1-sqrt"}),
    ],
)
def test_every_update_but_the_first_gets_what_hugging_face_gives_it(
    schedule: ScheduleSpec, name: str, options: dict[str, Any]
) -> None:
    first, *rest = ours(schedule)
    assert rest == pytest.approx(theirs(name, **options)[1:], abs=1e-12)
    assert first == (0.5 / WARMUP if "num_warmup_steps" in options else 1.0)  # theirs is 0: an update for nothing


@pytest.mark.row(
    "OPT-01",
    clause=(
        "lr equals d^-0.5 min(step^-0.5, step warmup^-1.5) in closed form",
        "the peak is at the last step of the warm-up",
    ),
)
@pytest.mark.parametrize("dim, warmup", [(512, 4000), (1024, 4000), (64, 10)])
def test_noam_is_the_papers_and_peaks_at_the_end_of_its_warmup(dim: int, warmup: int) -> None:
    schedule = Noam(warmup=warmup)
    lr = schedule.peak(dim)
    steps = sorted({1, 2, warmup // 2, warmup - 1, warmup, warmup + 1, 3 * warmup, 100_000})
    for count in steps:
        paper = dim**-0.5 * min(count**-0.5, count * warmup**-1.5)
        assert lr * schedule.factor(count - 1, 100_000) == pytest.approx(paper, rel=1e-12)
    factors = ours(schedule, 3 * warmup)
    assert max(factors) == factors[warmup - 1] == 1.0


@pytest.mark.row("OPT-01", clause="warm-up is 4000 steps by default")
def test_noam_warms_up_for_4000_updates_if_nothing_is_said() -> None:
    factors = ours(Noam(), 8000)
    assert factors.index(max(factors)) == 3999 and factors[1999] == pytest.approx(0.5)


@pytest.mark.row("OPT-05", clause="truncated rsqrt: lr = 1 / sqrt(max(step, 10^4)) at given steps")
@pytest.mark.row("NAR-00", clause="optimiser is Adafactor with the rate 1/sqrt(max(n, 10^4))")
@pytest.mark.parametrize("step", [0, 1, 9_999, 10_000, 10_001, 40_000, 10**6])
def test_t5s_rate_is_one_over_the_root_of_the_step_but_no_more_than_a_hundredth(step: int) -> None:
    assert 0.01 * InverseSquareRoot().factor(step, 2**20) == pytest.approx(1 / sqrt(max(step, 10**4)), rel=1e-12)


@pytest.mark.row(
    "OPT-05",
    clause=("constant rate: 5e-4 at given steps of fine-tuning", "linear warm-up: closed-form values at given steps"),
)
@pytest.mark.row("NAR-00", clause="fine-tuning rate constant at 5e-4 after a warm-up")
def test_fine_tuning_warms_up_and_stays() -> None:
    schedule = Constant(warmup=100)
    assert [5e-4 * schedule.factor(step, 10**4) for step in (0, 50, 100, 9_999)] == [2.5e-6, 2.5e-4, 5e-4, 5e-4]


@pytest.mark.row("OPT-05", clause="slanted triangle with a cut-off: closed-form values at given steps")
def test_the_slanted_triangle_is_its_papers() -> None:
    total, share, ratio, cut = 200, 0.1, 32, 20
    for step in range(total):
        p = step / cut if step < cut else 1 - (step - cut) / (cut * (1 / share - 1))
        paper = (1 + p * (ratio - 1)) / ratio
        assert SlantedTriangular().factor(step, total) == pytest.approx(paper, rel=1e-12)


@pytest.mark.parametrize(
    "schedule, corners",
    [
        (LinearSchedule(warmup=0.1, floor=0.2), {0: 0.05, 5: 0.5, 10: 1.0, 55: 0.6, 100: 0.2, 500: 0.2}),
        (Cosine(warmup=0.1, floor=0.2), {0: 0.05, 5: 0.5, 10: 1.0, 55: 0.6, 100: 0.2, 500: 0.2}),
        (WarmupStableDecay(warmup=0.1, decay=0.25, floor=0.2), {5: 0.5, 10: 1.0, 75: 1.0, 84: 0.52, 100: 0.2}),
        (SlantedTriangular(warmup=10, ratio=4), {0: 0.25, 10: 1.0, 55: 0.625, 100: 0.25, 500: 0.25}),
        (Noam(warmup=0.25), {0: 0.04, 24: 1.0, 99: 0.5}),
        (InverseSquareRoot(hold=0.25), {0: 1.0, 25: 1.0, 100: 0.5}),
    ],
    ids=lambda value: value.kind if isinstance(value, ScheduleSpec) else "",
)
def test_corners(schedule: ScheduleSpec, corners: dict[int, float]) -> None:
    assert {step: schedule.factor(step, 100) for step in corners} == pytest.approx(corners, abs=1e-12)


@every_kind
@pytest.mark.parametrize("total", [1, 2, 10])
@pytest.mark.parametrize("warmup", [0.0, 0.5, 1.0, 100.0])
def test_a_factor_is_a_share_even_of_the_shortest_run(kind: str, total: int, warmup: float) -> None:
    schedule = decode(ScheduleSpec, {"kind": kind, "warmup": warmup})
    assert all(0 <= schedule.factor(step, total) <= 1 for step in range(3 * total))
    assert max(schedule.factor(step, total) for step in range(201)) > 0


@every_kind
def test_a_warmup_of_steps_is_whole(kind: str) -> None:
    with pytest.raises(SpecError, match="warmup: must be a whole number of steps, or a fraction of the run below 1"):
        decode(ScheduleSpec, {"kind": kind, "warmup": 2.5})
