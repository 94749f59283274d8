"""The page: whole in itself, the numbers in it those of the tensors, and no text of anybody acts."""

import base64
import hashlib
import json
import re

import numpy as np
import pytest
import torch
from tests.viewing.small import EVIL, built, decoder, encoder, html, long_page, pair, reading

from anyformer.core import Frame, capture
from anyformer.drawing.figures import picture
from anyformer.parts.mixers.gru import GRU
from anyformer.viewing import attention_maps
from anyformer.viewing.attention_maps import looks
from anyformer.viewing.page import page
from anyformer.viewing.tokenised_text import TokenisedText

WORDS = ("it", "was", "too", "tired")


def data_of(text: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def unpacked(sheet: dict, name: str, shape: str) -> torch.Tensor:
    values = np.frombuffer(base64.b64decode(sheet[name]), dtype="<f4").reshape(sheet[shape])
    return torch.tensor(values)


@pytest.mark.row(
    "VIZ-01",
    clause=(
        "attention JSON in the page equals the model's tensors to 1e-4",
        "data for switching heads is present in the page",
    ),
)
@pytest.mark.row("VIZ-02", clause="each cell holds the matrix of its own layer and head")
@pytest.mark.row(
    "VIZ-12", clause=("entropy of the attention is computed per head", "mean attention distance is computed per head")
)
def test_every_layer_and_head_is_in_the_page_with_its_own_matrix() -> None:
    spec = encoder(depth=3)
    model = built(spec)
    (look,) = looks(spec, model, range(4))
    (shown,) = data_of(html(spec, model, *WORDS))["looks"]
    assert [sheet["shape"] for sheet in shown["sheets"]] == [[2, 4, 4]] * 3 and shown["rows"] == list(WORDS)
    for sheet, there in zip(look.sheets, shown["sheets"], strict=True):
        for name, shape in (("weights", "shape"), ("overview", "overview_shape")):
            torch.testing.assert_close(unpacked(there, name, shape), getattr(sheet, name), rtol=0.0, atol=1e-4)
        assert there["entropy"] == pytest.approx(sheet.entropy.tolist(), abs=1e-4)
        assert there["distance"] == pytest.approx(sheet.distance.tolist(), abs=1e-4)


@pytest.mark.row("VIZ-01", clause="attention layout equals bertviz format_attention")
def test_the_maps_lie_in_the_page_as_bertviz_stacks_them() -> None:
    spec = encoder(depth=3)
    model = built(spec)
    with capture(model, "*.pattern") as seen, torch.no_grad():
        model(torch.tensor([[0, 1, 2, 3]]), Frame())
    attention = [calls[0] for calls in seen.values()]
    formatted = torch.stack([layer.squeeze(0) for layer in attention])  # bertviz.util.format_attention
    assert [layer.shape for layer in attention] == [(1, 2, 4, 4)] * 3 and formatted.shape == (3, 2, 4, 4)
    (shown,) = data_of(html(spec, model, *WORDS))["looks"]
    mine = torch.stack([unpacked(sheet, "weights", "shape") for sheet in shown["sheets"]])
    torch.testing.assert_close(mine, formatted, rtol=0.0, atol=1e-4)


@pytest.mark.row("VIZ-04", clause="input-input, input-output and output-output are all exported")
@pytest.mark.row("VIZ-05", clause="the map is a matrix of target rows x source columns")
@pytest.mark.row("CLM-23", clause="interpretability: the attention weights can be drawn")
def test_all_three_looks_of_a_pair_are_there_to_choose_from() -> None:
    spec = pair()
    read = TokenisedText([2, 8, 9], [5, 6], ["<bos>", "der", "Hund"], ["the", "dog"], ["der", "Hund", "<eos>"])
    found = data_of(page("run", "the dog", read, looks(spec, built(spec), read.tokens, read.source)))["looks"]
    names = {look["name"]: (look["rows"], look["columns"]) for look in found}
    assert names == {
        "encoder": (["the", "dog"], ["the", "dog"]),
        "decoder": (["<bos>", "der", "Hund"], ["<bos>", "der", "Hund"]),
        "cross": (["der", "Hund", "<eos>"], ["the", "dog"]),  # what is being written, by what is read
    }


@pytest.mark.row("VIZ-01", clause="the HTML page is self-contained: loads nothing from outside")
def test_the_policy_allows_the_page_its_own_style_and_script_and_nothing_else() -> None:
    spec = encoder()
    text = html(spec, built(spec), *WORDS)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert policy and script and style
    allowed = policy[1].replace("&#39;", "'")
    assert allowed.startswith("default-src 'none'; ") and "unsafe" not in allowed
    for kind, found in (("script", script), ("style", style)):
        sha = base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{sha}'" in allowed
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|innerHTML|eval\(", text)


def test_text_names_and_tokens_stay_text() -> None:
    spec = encoder()
    tokens = ("</script>", EVIL, "<!--", "\u2028&")
    text = page(EVIL, EVIL, reading(*tokens), looks(spec, built(spec), range(4)))
    assert EVIL not in text and text.count("<script") == 2 and text.count("</script") == 2 and "<!--" not in text
    assert data_of(text)["looks"][0]["rows"] == list(tokens)


def test_the_page_says_when_it_shows_influence_and_what_was_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_maps, "MOST_TOKENS", 20)
    spec = decoder(GRU(), depth=1)
    names = [f"w{place}" for place in range(30)]
    read = TokenisedText([1] * 30, None, names, [], names, left_out=12)
    text = page("run", "text", read, looks(spec, built(spec), read.tokens))
    assert "This model has no attention weights" in text and "|dy_i/dx_j|" in text
    assert "read up to token 20 of 30" in text and "12 tokens at the end" in text


def test_the_page_of_2048_tokens_is_small_and_says_what_it_shows() -> None:
    text = long_page(encoder(depth=1))
    assert len(text) < 1_000_000 and "the first 128 of 2,048 tokens" in text


@pytest.mark.row("VIZ-05", clause="a PNG or SVG file is produced")
@pytest.mark.row("CLM-23", clause="interpretability: the attention weights can be drawn")
@pytest.mark.parametrize("form", ["svg", "png"])
def test_a_map_is_a_picture_too(form: str) -> None:
    made = picture("cross, layer 1", ["der", EVIL, "$x_1$"], ["the", "\n"], torch.rand(3, 2), form)
    assert made.startswith(b"\x89PNG" if form == "png" else b"<?xml") and b"<script" not in made
