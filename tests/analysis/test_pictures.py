"""What is drawn are the figures: points of curves where their values are, cells as dark as their numbers."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from torch import Tensor

from anyformer.analysis.claim import Figures
from anyformer.analysis.claims import landscape
from anyformer.analysis.claims.batch_memory import BatchMemory
from anyformer.analysis.claims.gradient_distance import GradientDistance
from anyformer.analysis.claims.landscape import Landscape
from anyformer.analysis.claims.path_length import SENTENCE, PathLength
from anyformer.analysis.claims.price import DIM, LAYERS, PEAK, PEAK_LENGTH, PriceClaim, peak_bytes
from anyformer.analysis.claims.schedule import Schedule
from anyformer.analysis.claims.wall_clock import WallClock
from anyformer.analysis.families import function, residual
from anyformer.drawing.figures import Grid, Line, Lines, Panel


@pytest.mark.row(
    "VIZ-10", clause=("figures of scaling laws and power laws", "values on the axes equal the plotted arrays")
)
def test_a_power_law_is_drawn_at_its_values_and_both_axes_are_logarithms() -> None:
    sizes = [2.0**power for power in range(4, 9)]
    law = Line("law", sizes, [3.0 * size**-0.5 for size in sizes], theory=True)
    axes = Figure().add_subplot()
    Lines("scaling", "parameters", "loss", [law], log_x=True, log_y=True).draw(axes)
    (curve,) = axes.lines
    assert list(curve.get_xdata()) == law.x and list(curve.get_ydata()) == law.y
    assert (axes.get_xscale(), axes.get_yscale(), axes.get_xlabel()) == ("log", "log", "parameters")


@pytest.mark.row("VIZ-10", clause=("figure of the loss landscape", "values on the axes equal the plotted arrays"))
def test_a_slice_of_the_loss_is_a_cell_for_every_point_and_the_darker_the_higher() -> None:
    heights = {name: [[5.0, 5.0], [6.0, 9.0]] for name in landscape.ARMS} | {"both": [[0.0, 1.0], [2.0, 4.0]]}
    losses = {name: torch.tensor(rows).exp().tolist() for name, rows in heights.items()}
    panels = Landscape().picture(losses)
    for panel, rows in zip(panels, heights.values(), strict=True):
        assert isinstance(panel, Grid)
        axes = Figure().add_subplot()
        panel.draw(axes)
        least, most = rows[0][0], rows[1][1]
        shades = [to_rgba(patch.get_facecolor())[3] for patch in axes.patches]
        assert shades == pytest.approx([0.6 * (it - least) / (most - least) for row in rows for it in row])
        assert axes.get_xlim() == axes.get_ylim() == (0.5, 2.5)


def drawn(panel: Panel) -> Axes:
    axes = Figure().add_subplot()
    panel.draw(axes)
    return axes


@pytest.mark.row("CLM-04", clause="the curves of RNN, LSTM and Transformer are plotted")
def test_gradients_over_distance_are_a_curve_for_each_family() -> None:
    norms = {"RNN": [1.0, 0.5, 0.25], "LSTM": [1.0, 0.9, 0.8], "Transformer": [1.0, 1.0, 1.0]}
    (panel,) = GradientDistance().picture(norms)
    curves = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in drawn(panel).lines}
    assert curves == {name: ([0, 1, 2], values) for name, values in norms.items()}


@pytest.mark.row("CLM-06", clause="the 'chef ... who ...' example is drawn")
def test_the_words_after_the_chef_are_bars_as_high_as_they_are_far() -> None:
    away = [float(place) for place in range(len(SENTENCE))]
    curves = {name: [1.0, 2.0] for name in ("recurrent", "convolution", "dilated", "attention")}
    _, panel = PathLength().picture({"lengths": [1, 2], "from chef": away, **curves})
    axes = drawn(panel)
    words = [label.get_text() for label in axes.get_xticklabels()]
    assert words[:2] == ["chef", "who"] and words[-1] == "cooked"
    assert [bar.get_height() for bar in axes.patches] == list(range(1, len(words) + 1))


@pytest.mark.row("CLM-07", clause="the figure is drawn: a grid with these numbers")
def test_the_steps_before_each_state_are_written_into_its_cell() -> None:
    waves = [[t + layer - 1 for t in range(1, 5)] for layer in range(1, 4)]
    for panel in Schedule().picture({"recurrent": waves, "attention": [[layer] * 4 for layer in range(1, 4)]}):
        written = {text.get_position(): int(text.get_text()) for text in drawn(panel).texts}
        wave = "recurrent" in panel.title
        assert written == {(t, layer): t + layer - 1 if wave else layer for t in range(1, 5) for layer in range(1, 4)}


TIMES = {
    "lengths": [128, 256, 512],
    "recurrent, cell by cell": [1.0, 2.0, 4.0],
    "recurrent, fused": [0.1, 0.2, 0.4],
    "Transformer layer": [0.05, 0.05, 0.05],
}


@pytest.mark.row("CLM-15")
def test_times_of_recurrence_and_transformer_are_curves_over_the_length() -> None:
    (panel,) = WallClock().picture(TIMES)
    curves = {line.get_label(): list(line.get_ydata()) for line in drawn(panel).lines}
    assert curves == {name: times for name, times in TIMES.items() if name != "lengths"}
    assert all(list(line.get_xdata()) == [128, 256, 512] for line in drawn(panel).lines)


@pytest.mark.row("CLM-25")
def test_the_verdict_tells_how_many_layers_the_time_of_a_recurrence_pays_for() -> None:
    because = WallClock().judge(TIMES).because
    assert "at T = 512 a recurrent layer takes as long as 80.0 Transformer layers" in because
    assert "a fused one as long as 8.0" in because


@pytest.mark.row("CLM-30", clause="the slope of B_max against T is computed and shown")
def test_the_slopes_of_the_largest_batch_are_told_and_its_curves_drawn() -> None:
    lengths = [512, 1024, 2048]
    linear = [100 * n for n in lengths]
    sizes = {"attention, matrix written": [n * n for n in lengths], "attention, fused": linear, "recurrent": linear}
    figures = {"lengths": lengths, **sizes, "cost card": linear, "measured": linear}
    because = BatchMemory().judge(figures).because
    assert re.findall(r"T\^(-[\d.]+)", because) == ["-2.00", "-1.00", "-1.00"]
    (panel,) = BatchMemory().picture(figures)
    curves = {line.get_label(): list(line.get_ydata()) for line in drawn(panel).lines}
    assert curves == {name: [2**30 / one for one in some] for name, some in sizes.items()}


FAMILIES = ["RNN", "GRU", "LSTM", "CNN", "Transformer"]


@cache
def prices() -> Figures:
    """The figures of CLM-16, measured once for all tests of a process."""
    return PriceClaim().measure()


@pytest.mark.row(
    "CLM-16",
    clause=(
        "FLOPs of RNN, LSTM, GRU, CNN and Transformer at equal d and T shown",
        "parameters of RNN, LSTM, GRU, CNN, Transformer at equal d and T shown",
    ),
)
def test_parameters_and_operations_of_five_families_are_bars() -> None:
    claim, d, t = PriceClaim(), 128, 1024
    panels = {panel.title: panel for panel in claim.picture(prices())}
    matrices = {"RNN": 2, "GRU": 6, "LSTM": 8, "CNN": 3, "Transformer": 12}  # of d x d, by each token once
    for title, factor, rest in (("Parameters", d * d, 20 * d), ("Flop", 2 * d * d * t, 2 * 2 * t * t * d)):
        axes = drawn(panels[title])
        assert [label.get_text() for label in axes.get_xticklabels()] == FAMILIES
        for name, bar in zip(FAMILIES, axes.patches, strict=True):  # biases and norms, and the products of tokens
            assert 0 <= bar.get_height() - factor * matrices[name] <= (rest if name == "Transformer" else 20 * d)


def saved_bytes(branches: list[Mapping[str, Any]], length: int) -> int:
    """Bytes that autograd keeps between the two passes of a layer, each storage once, weights left out."""
    stack, sizes = residual(*branches, depth=1, dim=DIM).train(), {}
    weights = {weight.untyped_storage().data_ptr() for weight in stack.parameters()}

    def keep(x: Tensor) -> Tensor:
        sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        y = function(stack)(torch.randn(1, length, DIM))
    assert y.requires_grad
    return sum(size for place, size in sizes.items() if place not in weights)


@pytest.mark.row("CLM-16", clause="peak memory of RNN, LSTM, GRU, CNN, Transformer at equal d and T shown")
def test_the_measured_peak_memory_of_five_families_is_drawn_and_covers_what_autograd_keeps() -> None:
    claim, figures = PriceClaim(), prices()
    (panel,) = (panel for panel in claim.picture(figures) if panel.title == PEAK.capitalize())
    axes = drawn(panel)
    assert [label.get_text() for label in axes.get_xticklabels()] == FAMILIES
    for name, bar in zip(FAMILIES, axes.patches, strict=True):
        stack = residual(*LAYERS[name], depth=1, dim=DIM)
        gradients = 4 * sum(weight.numel() for weight in stack.parameters())
        kept = saved_bytes(LAYERS[name], PEAK_LENGTH)
        assert kept < bar.get_height() == figures[name][-1] < 4 * (kept + gradients), name
        assert f"{PEAK} " in claim.judge(figures).because


@pytest.mark.row("CLM-16", clause="peak memory of RNN, LSTM, GRU, CNN, Transformer at equal d and T shown")
@pytest.mark.parametrize("name", ["CNN", "Transformer"])
def test_the_peak_memory_grows_with_the_length_by_what_is_kept_for_a_token(name: str) -> None:
    short, middle, long = (peak_bytes(LAYERS[name], length) for length in (512, 1024, 1536))
    assert long - middle == pytest.approx(middle - short, rel=0.1) and middle > short


@pytest.mark.row("CLM-27", clause="the loss is cut along two random filter-normalised directions")
def test_the_directions_of_a_slice_have_the_norm_of_each_row_and_the_loss_changes_along_both() -> None:
    rng = torch.Generator().manual_seed(0)
    weight = torch.randn(6, 4, generator=rng) * torch.arange(1.0, 7.0)[:, None]
    one, other = (landscape._direction(weight, rng) for _ in range(2))
    for direction in (one, other):
        torch.testing.assert_close(direction.norm(dim=1), weight.norm(dim=1))
    assert torch.cosine_similarity(one.flatten(), other.flatten(), dim=0).abs() < 0.9
    heights = landscape._slice(residual=True, norm=True, seed=0)
    assert heights.shape == (9, 9) and heights.diff(dim=0).abs().min() > 0 and heights.diff(dim=1).abs().min() > 0
