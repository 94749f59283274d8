"""Claims about time: the stored figures of one machine, and the measurement itself at sizes that take no time."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from anyformer.analysis.claim import OURS, ClaimResult, TimedClaim, claim, claims, stored
from anyformer.analysis.claims import prefixes, recomputation, wall_clock
from anyformer.analysis.complexity import SECONDS, TIMED, exponent, time_exponents
from anyformer.cli.main import main
from anyformer.drawing.figures import Panel

CLAIMS = {one.ids[0]: one for one in claims() if isinstance(one, TimedClaim)}
every_timed_claim = pytest.mark.parametrize("name", CLAIMS)
row = pytest.mark.row


def ours(name: str) -> Any:
    return stored(OURS)[name].figures


def drawn(panel: Panel) -> Axes:
    axes = Figure().add_subplot()
    panel.draw(axes)
    return axes


def plotted(panel: Panel) -> dict[str, tuple[list[float], list[float]]]:
    lines = drawn(panel).lines
    return {str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata())) for line in lines}


@every_timed_claim
def test_stored_times_name_their_machine_and_command_and_the_sizes_that_are_measured(name: str) -> None:
    result: ClaimResult = stored(OURS)[name]
    assert result.command == f"anyformer claims {name}" and "threads" in result.machine and "torch" in result.machine
    assert result.figures[TIMED if TIMED in result.figures else "lengths"] == list(CLAIMS[name].sizes)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "OPT-07" else name for name in CLAIMS]
)
def test_the_clock_makes_the_record_that_is_stored(name: str) -> None:
    measured = json.loads(json.dumps(CLAIMS[name].clock((8, 16))))
    kept = {key: values for key, values in ours(name).items() if key in measured}
    assert measured.keys() == kept.keys() and len(measured) > 2
    assert all(len(values) == 2 and min(values) > 0 for values in measured.values())
    assert all(panel.title for panel in CLAIMS[name].picture({**ours(name), **measured}))


@row("ATT-09", clause="the timing ratio to the parallel version is measured and shown")
def test_the_command_measures_shows_and_stores_how_much_longer_a_call_for_each_prefix_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefixes.Prefixes, "sizes", (4, 8))
    assert main(["claims", "ATT-09", "--out", str(tmp_path)]) == 0
    (line,) = (tmp_path / "claims.jsonl").read_text().splitlines()
    figures = json.loads(line)["figures"]
    slow, fast = (figures[SECONDS + name] for name in (prefixes.PREFIXES, prefixes.MASKED))
    said = capsys.readouterr().out
    assert f"takes {slow[0] / fast[0]:.1f} times as long" in said and f"{slow[1] / fast[1]:.1f} times over 8" in said
    assert "torch" in json.loads(line)["machine"]


@row("ATT-09", clause="the timing ratio to the parallel version is measured and shown")
def test_a_call_for_each_prefix_took_several_times_as_long_at_every_length() -> None:
    assert min(prefixes.ratios(ours("ATT-09"))) > 2


@row("CLM-12", clause="time over T of both parts is plotted")
def test_the_times_of_attention_and_of_the_feed_forward_net_are_curves_over_the_length() -> None:
    figures = ours("CLM-12")
    curves = plotted(CLAIMS["CLM-12"].picture(figures)[1])
    assert curves.keys() == {"tokens with tokens", "feed-forward"}
    for name, (x, y) in curves.items():
        assert (x, y) == (figures[TIMED], figures[SECONDS + name])
    grows = time_exponents(figures)
    assert grows["tokens with tokens"] > grows["feed-forward"]


@row("CLM-15", clause=("time per step over T of RNN and Transformer at the same d",))
def test_times_of_recurrence_and_transformer_are_stored_and_drawn_over_the_length() -> None:
    figures = ours("CLM-15")
    for panel, prefix in zip(CLAIMS["CLM-15"].picture(figures), ("", wall_clock.GPU), strict=True):
        assert plotted(panel) == {name: (figures["lengths"], figures[prefix + name]) for name in wall_clock.KINDS}
    assert figures["lengths"][-1] >= 4096


@row("CLM-15", clause="the crossover length is measured and shown")
def test_the_length_from_which_on_a_fused_recurrence_is_slower_on_a_gpu_is_told() -> None:
    figures = ours("CLM-15")
    fused, layer = (figures[wall_clock.GPU + name] for name in (wall_clock.FUSED, wall_clock.LAYER))
    length = wall_clock.crossover(figures["lengths"], fused, layer)
    assert figures["lengths"][0] < length < figures["lengths"][-1]
    because = CLAIMS["CLM-15"].judge(figures).because
    assert f"a fused one is slower than the layer from T = {length:.0f} on" in because


@row("CLM-15", clause="on a GPU the RNN's time (plain cell or cuDNN) has slope about 1 in T")
def test_on_a_gpu_the_time_of_a_recurrence_grows_with_the_length() -> None:
    figures = ours("CLM-15")
    assert exponent(figures["lengths"], figures[wall_clock.GPU + wall_clock.CELLS]) == pytest.approx(1.0, abs=0.1)


@row("CLM-15", clause="the Transformer's time is flat in T until the GPU is full")
def test_on_a_gpu_the_time_of_a_transformer_is_flat_until_the_gpu_is_full() -> None:
    figures = ours("CLM-15")
    full = figures["lengths"].index(wall_clock.full_from(figures))
    lengths, times = figures["lengths"], figures[wall_clock.GPU + wall_clock.LAYER]
    assert lengths[full] / lengths[0] >= 32 and exponent(lengths[:full], times[:full]) < 0.1
    assert exponent(lengths[full:], times[full:]) > 0.7


@row("CLM-15", clause="the crossover length is measured and shown")
@pytest.mark.parametrize(
    ("theirs", "length"), [([4.0, 4.0, 4.0], 40.0), ([0.5, 0.5, 0.5], 0.0), ([9.0, 9.0, 9.0], math.inf)]
)
def test_two_curves_cross_between_the_lengths_where_their_order_changes(theirs: list[float], length: float) -> None:
    assert wall_clock.crossover([10, 20, 80], [1.0, 2.0, 8.0], theirs) == pytest.approx(length)


@row("CLM-25", clause=("the layers that fit in an RNN's step time at T=512 are measured",))
def test_the_layers_that_fit_into_the_time_of_a_recurrence_over_512_tokens_are_told() -> None:
    figures = ours("CLM-15")
    place = figures["lengths"].index(512)
    cells, fused, layer = (figures[name][place] for name in (wall_clock.CELLS, wall_clock.FUSED, wall_clock.LAYER))
    because = CLAIMS["CLM-15"].judge(figures).because
    assert f"at T = 512 a recurrent layer takes as long as {cells / layer:.1f} Transformer layers" in because
    assert f"a fused one as long as {fused / layer:.1f}" in because


@row("CLM-25", clause="in the same wall time a Transformer can be deeper than an RNN")
def test_two_transformer_layers_fit_into_the_time_of_a_recurrence() -> None:
    """Over 512 tokens; on the GPU the fused recurrence alone is as fast as a layer, until the texts are longer."""
    figures = ours("CLM-15")
    on_gpu = {name.removeprefix(wall_clock.GPU): times for name, times in figures.items()}
    assert min(wall_clock.affordable(figures).values()) >= 2
    assert wall_clock.affordable(on_gpu)[wall_clock.CELLS] >= 2
    assert on_gpu[wall_clock.FUSED][-1] / on_gpu[wall_clock.LAYER][-1] >= 2


@row("SSM-06", clause="log-log time slope in T: 1.0 for the SSM, 2.0 for attention")
def test_the_time_of_a_state_space_grows_with_the_length_and_that_of_attention_with_its_square() -> None:
    grows = time_exponents(ours("SSM-06"))
    assert grows["state space"] == pytest.approx(1.0, abs=0.15) and grows["attention"] == pytest.approx(2.0, abs=0.15)


@row("XF-16", clause="time grows with slope 2.0 +- 0.15 at large n")
def test_the_time_of_full_attention_grows_with_the_square_of_the_length() -> None:
    figures = ours("XF-16")
    for name in ("matrix written", "fused"):
        times = figures[SECONDS + name]
        assert exponent(figures[TIMED], times) == pytest.approx(2.0, abs=0.15), name
        assert exponent(figures[TIMED][-2:], times[-2:]) == pytest.approx(2.0, abs=0.15), name


@row("XF-06", clause="time grows with T at slope about 1.0, below 1.3")
def test_the_time_of_bigbird_grows_with_the_length_and_that_of_full_attention_faster() -> None:
    grows = time_exponents(ours("XF-06"))
    assert 0.8 < grows["BigBird"] < 1.3 < 1.7 < grows["full attention"]


@row("OPT-07", clause="costs one extra forward pass, about 33% more time")
def test_a_step_with_recomputation_took_about_a_third_longer() -> None:
    for name, ratio in recomputation.longer(ours("OPT-07")).items():
        assert 1.2 < ratio < 1.45, name


@row("OPT-07", clause="a counter shows how many layers were recomputed")
def test_the_layers_that_ran_again_are_counted_and_told() -> None:
    counts = {name: recomputation.layers_run_again(choice) for name, choice in recomputation.CHOICES.items()}
    assert counts == {"none": 0, "blocks": 8, "sqrt": 8, "layers 0 and 2": 2}
    figures = {**ours("OPT-07"), **{f"layers run again, {name}": count for name, count in counts.items()}}
    claimed = claim("OPT-07")
    assert (
        "run again in the backward pass: 0 (none), 8 (blocks), 8 (sqrt), 2 (layers 0 and 2)"
        in claimed.judge(figures).because
    )
    assert claimed.judge({**figures, "layers run again, blocks": 7}).word == "does not hold"
    bars = drawn(claimed.picture(figures)[0]).patches
    assert [bar.get_height() for bar in bars] == [0, 8, 8, 2]
