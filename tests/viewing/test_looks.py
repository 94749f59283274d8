"""What is shown of a model is what flowed through it."""

import pytest
import torch
from tests.viewing.small import DIM, VOCAB, built, decoder, encoder, pair, stack

from anyformer.core import Frame, capture
from anyformer.models import Block, Branch, Encoder, Stack
from anyformer.parts.channels.identity import Identity
from anyformer.parts.combine.bidirectional import Bidirectional
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.mixers.gru import GRU
from anyformer.parts.mixers.linformer import Linformer
from anyformer.viewing import attention_maps
from anyformer.viewing.attention_maps import MOST_TOKENS, WHOLE, looks

TOKENS = [3, 1, 4, 1, 5, 9, 2]


class Untapped(torch.nn.Identity):
    """In the place of a tap: nobody can see what flows here."""

    captured = False


@pytest.mark.row("VIZ-01", clause="attention JSON in the page equals the model's tensors to 1e-4")
@pytest.mark.parametrize("spec", [encoder(), decoder()], ids=["encoder", "decoder"])
def test_weights_are_those_that_were_captured(spec) -> None:
    model = built(spec)
    with capture(model, "*.pattern") as seen, torch.no_grad():
        model(torch.tensor([TOKENS]), Frame())
    (look,) = looks(spec, model, TOKENS)
    assert look.name == spec.kind and [sheet.label for sheet in look.sheets] == ["1", "2"]
    for sheet, (pattern,) in zip(look.sheets, seen.values(), strict=True):
        assert sheet.measure == "attention" and torch.equal(sheet.weights, pattern[0])
        torch.testing.assert_close(sheet.overview, pattern[0])  # a short text is shown as it is


@pytest.mark.row("VIZ-04", clause="shapes: source x source, target x source, target x target")
@pytest.mark.row("VIZ-05", clause=("the map is a matrix of target rows x source columns", "each row sums to 1"))
@pytest.mark.row("CLM-23", clause="interpretability: the attention weights can be drawn")
@pytest.mark.row("CLM-32", clause="encoder output is one vector per token, not a fixed-size state")
def test_an_encoder_decoder_is_seen_in_three_ways_and_rows_add_up_to_one() -> None:
    spec = pair()
    found = {look.name: look for look in looks(spec, built(spec), TOKENS, [7, 8, 9, 10])}
    shapes = {name: tuple(look.sheets[0].weights.shape) for name, look in found.items()}
    assert shapes == {"encoder": (2, 4, 4), "decoder": (2, 7, 7), "cross": (4, 7, 4)}
    assert found["cross"].sheets[0].distance is None and len(found["cross"].sheets) == 2
    for look in found.values():
        sums = torch.cat([sheet.weights.sum(-1).flatten() for sheet in look.sheets])
        torch.testing.assert_close(sums, torch.ones_like(sums))


def test_cross_attention_is_told_by_what_it_reads_and_not_by_lengths() -> None:
    spec = pair()
    found = {look.name: len(look.sheets) for look in looks(spec, built(spec), TOKENS, TOKENS)}
    assert found == {"encoder": 2, "decoder": 2, "cross": 2}


def test_a_shared_layer_is_shown_as_often_as_it_runs() -> None:
    block = Block(branches=(Branch(part=Attention(heads=2)),), share="all")
    spec = Encoder(vocab=VOCAB, dim=DIM, stack=Stack(blocks={"layer": block}, depth=3))
    model = built(spec)
    with capture(model, "*.pattern") as seen, torch.no_grad():
        model(torch.tensor([TOKENS]), Frame())
    (patterns,) = seen.values()
    (look,) = looks(spec, model, TOKENS)
    assert [sheet.label for sheet in look.sheets] == ["1", "2", "3"]
    for sheet, pattern in zip(look.sheets, patterns, strict=True):
        assert torch.equal(sheet.weights, pattern[0])


def test_a_model_without_attention_shows_its_influence() -> None:
    spec = decoder(GRU())
    (look,) = looks(spec, built(spec), TOKENS)
    assert [(sheet.label, sheet.measure) for sheet in look.sheets] == [
        ("1", "influence"),
        ("2", "influence"),
        (WHOLE, "influence"),
    ]
    for sheet in look.sheets:
        assert sheet.directions == (DIM, DIM)  # exact, of so few tokens
        assert not sheet.weights.triu(1).any() and sheet.weights[0].diagonal().all()


@pytest.mark.row("CLM-32", clause="gradients of a bidirectional output at t reach every input")
def test_a_layer_that_reads_both_ways_has_influence_on_both_sides() -> None:
    spec = encoder(Bidirectional(part=GRU()), depth=1)
    (look,) = looks(spec, built(spec), TOKENS)
    assert look.name == "encoder" and (look.sheets[0].weights > 0).all()


def test_attention_that_reads_from_the_end_is_not_shown_the_wrong_way_round() -> None:
    spec = encoder(Bidirectional(part=Attention(heads=2), merge="sum"), depth=1)
    (look,) = looks(spec, built(spec), TOKENS)
    assert {sheet.measure for sheet in look.sheets} == {"influence"}


def test_layers_with_and_without_weights_stand_side_by_side() -> None:
    spec = decoder(GRU(), Attention(heads=2), depth=1)
    (look,) = looks(spec, built(spec), TOKENS)
    assert [sheet.measure for sheet in look.sheets] == ["influence", "attention", "influence"]


def test_a_part_that_looks_across_without_weights_shows_its_influence_across() -> None:
    spec = pair()
    model = built(spec)
    for block in model.decoder.stack.calls():
        block.branches[1].part.pattern = Untapped()
    found = {look.name: look.sheets[0] for look in looks(spec, model, TOKENS, [7, 8, 9, 10])}
    assert found["cross"].measure == "influence" and found["cross"].weights.shape == (1, 7, 4)
    assert found["decoder"].measure == "attention"


@pytest.mark.parametrize("length", [5, 7])
def test_columns_that_are_no_tokens_are_called_slots(length: int) -> None:
    spec = Encoder(vocab=VOCAB, dim=DIM, stack=stack(Linformer(heads=2, rank=5)), max_len=64)
    (look,) = looks(spec, built(spec), TOKENS[:length])
    assert all(sheet.slots and sheet.distance is None for sheet in look.sheets)  # even if there are as many as tokens


def test_a_model_that_sees_one_word_at_a_time_shows_a_diagonal() -> None:
    spec = encoder(Identity(), depth=1)
    (look,) = looks(spec, built(spec), TOKENS)
    (sheet,) = look.sheets
    assert sheet.label == WHOLE and not (sheet.weights[0] - sheet.weights[0].diagonal().diag()).any()


def test_of_a_long_text_pairs_are_kept_for_its_beginning_and_summaries_of_all() -> None:
    spec = encoder(depth=1)
    (look,) = looks(spec, built(spec), [1, 2, 3, 4] * 100)
    sheet = look.sheets[0]
    assert look.length == 400 and sheet.shape == (400, 400)
    assert sheet.weights.shape == (2, MOST_TOKENS, MOST_TOKENS)
    torch.testing.assert_close(sheet.overview.sum(-1), torch.ones(sheet.overview.shape[:2]), rtol=0.05, atol=0.0)


def test_of_a_long_text_influence_is_that_of_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_maps, "MOST_TOKENS", 20)  # influence takes a backward pass for each token
    spec = decoder(GRU(), depth=1)
    (look,) = looks(spec, built(spec), [1, 2, 3, 4] * 8)
    assert look.length == look.width == 20
