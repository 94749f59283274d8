"""Pictures of kinds show what was measured, cell by cell."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from anyformer.cli.main import main
from anyformer.core import MaskRule, NormSpec, PartSpec, PositionSpec, Site
from anyformer.core.discovery import discover
from anyformer.core.masks import dense
from anyformer.drawing.figures import Drawing
from anyformer.errors import SpecError
from anyformer.parts.mixers.conv import Conv
from anyformer.parts.mixers.linformer import Linformer
from anyformer.parts.norms.batch import BatchNorm
from anyformer.parts.norms.layer import LayerNorm
from anyformer.parts.positions.sinusoidal import Sinusoidal
from anyformer.viewing import gallery
from anyformer.viewing.gallery import picture_of

discover()


def images(drawing: Drawing) -> list[np.ndarray]:
    """The arrays behind a figure."""
    figure = Figure()
    drawing.draw(figure)
    return [np.asarray(image.get_array()) for axes in figure.axes for image in axes.images]


@pytest.mark.row(
    "VIZ-11", clause=("mask images for window, global and random attention", "each image equals its mask array")
)
@pytest.mark.parametrize("kind", sorted(MaskRule.kinds))
def test_the_picture_of_a_mask_is_the_mask(kind: str) -> None:
    rules = MaskRule.kinds[kind].examples()
    shown = images(picture_of(MaskRule.kinds[kind]))
    for rule, image in zip(rules, shown, strict=True):
        assert np.array_equal(image, gallery.mask_matrix(rule).numpy())
        if rule.static:
            assert np.array_equal(image, dense(rule, gallery.LENGTH, gallery.LENGTH).numpy())


def test_rules_that_go_by_marks_are_drawn_with_some() -> None:
    kinds = ("causal", "full", "prefix", "segment", "permutation")
    seen = {kind: gallery.mask_matrix(MaskRule.kinds[kind]()) for kind in kinds}
    assert seen["prefix"][0, 4] and not seen["prefix"][0, 5]
    assert not seen["segment"][5, 6] and seen["segment"][7, 6]
    assert not seen["permutation"][:, 8:].any() and not seen["permutation"].equal(seen["full"])


@pytest.mark.row(
    "POS-11", clause=("a T x d image of the sinusoidal table", "the plotted array equals the sinusoidal table")
)
def test_the_picture_of_the_sinusoids_is_their_table_over_places_and_channels() -> None:
    (image,) = images(gallery.of_positions([Sinusoidal()]))[:1]
    place, channel = np.arange(gallery.POSITIONS)[:, None], np.arange(gallery.POSITION_DIM)[None]
    angle = place / 10_000 ** ((channel // 2 * 2) / gallery.POSITION_DIM)
    np.testing.assert_allclose(image, np.where(channel % 2 == 0, np.sin(angle), np.cos(angle)), atol=1e-5)


@pytest.mark.row("POS-11", clause="a T x d image of the sinusoidal table")
def test_an_encoding_is_drawn_over_more_positions_than_a_mask() -> None:
    assert images(gallery.of_positions([Sinusoidal()]))[0].shape == (64, 64)


@pytest.mark.row("POS-11", clause="the PNG or SVG file is saved and has the right axes")
def test_the_saved_picture_of_the_sinusoids_has_channels_across_and_positions_down(tmp_path: Path) -> None:
    figure, file = Figure(), tmp_path / "sinusoids.png"
    drawing = gallery.of_positions([Sinusoidal()])
    drawing.draw(figure)
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("channel", "position")
    assert axes.get_xlim() == (-0.5, gallery.POSITION_DIM - 0.5)
    assert axes.get_ylim() == (gallery.POSITIONS - 0.5, -0.5)  # the first position on top
    assert main(["parts", "sinusoidal", "--picture", str(file), "--quiet"]) == 0
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", sorted(PositionSpec.kinds))
def test_every_scheme_has_a_picture_without_garbage(kind: str) -> None:
    assert all(np.abs(image).max() < 100 for image in images(picture_of(PositionSpec.kinds[kind])))


@pytest.mark.row("TRF-09", clause="normalises each feature over the batch (and time)")
@pytest.mark.row("VIZ-10")
def test_a_norm_marks_what_it_averages_over() -> None:
    layer, batch = gallery.depends(LayerNorm()), gallery.depends(BatchNorm())
    assert layer[0, 0].all() and layer.sum() == 6
    assert batch[:, :, 0].all() and batch.sum() == 4 * 5


@pytest.mark.row("VIZ-10", clause="figure of what LayerNorm and BatchNorm average over (cube)")
@pytest.mark.parametrize(("spec", "count"), [(LayerNorm(), 6), (BatchNorm(), 4 * 5)], ids=["layer", "batch"])
def test_the_cube_of_a_norm_is_coloured_where_it_averages(spec: NormSpec, count: int) -> None:
    figure = Figure()
    gallery.of_norms([spec]).draw(figure)
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_zlabel()) == ("batch", "place", "channel")
    opaque = [cell for cell in axes.collections if cell.get_facecolor()[0, 3] == 1]
    inside = 2 * 3 * 4  # cells of the 4 x 5 x 6 that have no face outside
    assert len(opaque) == count and len(axes.collections) == 4 * 5 * 6 - inside
    assert all(cell.get_facecolor()[:, 2].mean() > cell.get_facecolor()[:, 0].mean() for cell in opaque)  # blue


@pytest.mark.row("VIZ-11")
def test_a_convolution_is_a_band_and_linformer_looks_at_its_projections() -> None:
    band = gallery.part_matrices(Conv(kernel=3))["influence"]
    places = torch.arange(gallery.LENGTH)
    away = places[:, None] - places[None]
    assert bool(((band > 0) == ((away >= 0) & (away < 3))).all())
    (small, *_) = Linformer.examples()
    assert gallery.part_matrices(small)["weights"].shape == (gallery.LENGTH, small.rank)


@pytest.mark.row("VIZ-11", clause="an image of the Linformer projection")
@pytest.mark.parametrize("spec", Linformer.examples(), ids=lambda spec: spec.share)
def test_the_projection_of_linformer_is_drawn_and_gives_its_weights(spec: Linformer) -> None:
    _, weights, projection = images(gallery.of_part(spec))
    assert projection.shape == (spec.rank, gallery.LENGTH) and (projection < 0).any() and (projection > 0).any()
    site = Site(dim=gallery.PART_DIM, causal=False, max_len=gallery.LENGTH)
    part: Any = gallery._initialised(spec.place(site), site)
    x = torch.randn(1, gallery.LENGTH, gallery.PART_DIM, generator=torch.Generator().manual_seed(0))
    q, k, _ = part.qkv(x).unflatten(-1, (3 * part.h, part.c)).chunk(3, dim=2)
    slots = torch.tensor(projection) @ k[0, :, 0]  # the keys of the first head, mixed as in the picture
    expected = torch.softmax(q[0, :, 0] @ slots.T * part.c**-0.5, dim=-1)
    torch.testing.assert_close(torch.tensor(weights), expected.detach())


@pytest.mark.row("POS-11")
@pytest.mark.row("VIZ-10", clause="a file is emitted for each figure")
@pytest.mark.parametrize(
    "kind",
    ["sinusoidal", "window", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("batch", "layer", "linformer"))],
)
def test_a_picture_is_one_command(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / f"{kind}.svg"
    assert main(["parts", kind, "--picture", str(file), "--quiet"]) == 0
    assert capsys.readouterr().out.strip() == str(file) and file.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    "words", [["tied", "--picture", "a.svg"], ["--picture", "a.svg"], ["window", "--picture", "a.gif"]]
)
def test_what_cannot_be_drawn_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parts", *words]) == 2
    assert "--picture" in capsys.readouterr().err


def test_what_has_no_tokens_of_its_own_says_so() -> None:
    for kind in ("luong_attention", "unfold"):
        with pytest.raises(SpecError, match=r"encoder|alone"):
            picture_of(PartSpec.kinds[kind])
