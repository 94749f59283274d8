"""The neuron view: sums of q x k, and from them the row of the attention weights."""

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from tests.viewing.small import TEXT, decoder, encoder, pair, run

from anyformer.cli.main import main
from anyformer.core import ModelSpec
from anyformer.objectives.next_token import NextToken
from anyformer.objectives.objective import Objective
from anyformer.objectives.seq2seq import Seq2Seq
from anyformer.objectives.token_labels import TokenLabels
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.mixers.gru import GRU
from anyformer.viewing.view import View

Capture = pytest.CaptureFixture[str]
GROUPED = Attention(heads=4, kv_heads=2, scale=0.7)
CASES: dict[str, tuple[ModelSpec, Objective, str | None]] = {
    "self": (encoder(GROUPED), TokenLabels(classes=3), "2"),
    "masked": (decoder(), NextToken(), "1"),
    "cross": (pair(), Seq2Seq(), "cross.2"),
}


@pytest.mark.row("VIZ-03", clause="softmax of sum(q*k)/sqrt(d) equals the model's attention row")
@pytest.mark.parametrize("name", CASES)
def test_the_softmax_of_the_sums_is_the_row_of_the_weights(name: str, tmp_path: Path) -> None:
    spec, objective, layer = CASES[name]
    folder, _ = run(tmp_path / "run", spec, objective)
    view = View.of(folder, TEXT, "it was tired" if name == "cross" else None)
    last = view.choose(layer).rows[-1]
    choice = view.choose(layer, head=2, token=last)
    found = choice.neurons()
    assert found is not None and choice.token is not None and found.keys.shape[0] == len(choice.columns)
    visible = found.weights > 0
    torch.testing.assert_close(found.scores[visible].softmax(0), found.weights[visible])
    torch.testing.assert_close(found.weights, choice.weights[choice.token])


@pytest.mark.row("VIZ-03")
@pytest.mark.parametrize(("spec", "panels"), [(encoder(), 5), (decoder(GRU()), 1)], ids=["attention", "gru"])
def test_a_head_and_a_token_are_drawn_with_their_neurons_where_there_are_some(
    spec: ModelSpec, panels: int, tmp_path: Path, capsys: Capture
) -> None:
    folder, _ = run(tmp_path / "run", spec, NextToken() if spec.decodes else TokenLabels(classes=3))
    file = tmp_path / "it.svg"
    assert main(["view", str(folder), TEXT, "--head", "1", "--token", "it", "--out", str(file), "-q"]) == 0
    assert capsys.readouterr().out.strip() == str(file) and file.read_text().count('<g id="axes_') == panels


@pytest.mark.row(
    "VIZ-03",
    clause=("shows q and k vectors for a selected token", "shows elementwise q*k, its sum and the softmax"),
)
def test_the_panels_show_query_keys_products_sums_and_softmax_of_the_token(tmp_path: Path) -> None:
    folder, _ = run(tmp_path / "run", encoder(), TokenLabels(classes=3))
    neurons, figure = View.of(folder, TEXT).choose("2", head=1, token="it").neurons(), Figure()
    assert neurons is not None
    neurons.drawing("it", TEXT.split()).draw(figure)
    shown = {axes.get_title(): np.asarray(axes.images[0].get_array()) for axes in figure.axes}
    q, k = neurons.query.numpy(), neurons.keys.numpy()
    sums = np.array([[float(q @ key)] for key in k])
    expected = {"q: it": np.stack([q] * len(k)), "k": k, "q × k": np.stack([q * key for key in k]), "sum": sums}
    expected["softmax"] = np.exp(sums) / np.exp(sums).sum()
    assert list(shown) == list(expected)
    for title, values in expected.items():
        np.testing.assert_allclose(shown[title], values, rtol=1e-4, atol=1e-6, err_msg=title)
