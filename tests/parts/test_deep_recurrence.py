"""Deep recurrent translators: a linear path through all layers, and a context that every layer reads."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyformer.core import Frame, Memory, PartSpec, Site, capture, decode, initialise
from anyformer.errors import SpecError
from anyformer.models.stack import BranchModule
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.mixers.lstm import LSTMPart
from anyformer.training import load

DIM, HALF, T = 8, 4, 6
LSTM = {"kind": "lstm"}


def built(kind: str, part: dict[str, Any] = LSTM, causal: bool = True, **fields: Any) -> Any:
    made = decode(PartSpec, {"kind": kind, "part": part, **fields}).build(Site(dim=DIM, causal=causal))
    initialise(made, NormalInit(deviation=0.5), seed=0)
    return made


@pytest.mark.row("WMT-02", clause="deep LSTM whose layers are joined by linear fast-forward paths")
def test_a_fast_forward_layer_is_its_equation() -> None:
    part, x = built("fast_forward"), torch.randn(2, T, DIM)
    f = part.path(x)
    torch.testing.assert_close(part(x, Frame()).y, torch.cat((f, part.part(f, Frame()).y), dim=-1))


@pytest.mark.row(
    "WMT-02",
    clause=(
        "deep LSTM whose layers are joined by linear fast-forward paths",
        "gradient flows along the fast-forward path",
    ),
)
def test_the_gradient_of_the_fast_path_is_a_product_of_matrices() -> None:
    layers: list[Any] = [built("fast_forward") for _ in range(5)]
    x, expected = torch.randn(1, T, DIM, requires_grad=True), torch.eye(DIM)[:HALF]
    y: Tensor = x
    for layer in layers:
        with torch.no_grad():
            layer.path.weight[:, HALF:] = 0.0  # the path alone: what recurrences say does not come back to it
        expected = layer.path.weight[:, :HALF] @ expected
        y = layer(y, Frame()).y
    slopes = [torch.autograd.grad(y[0, 3, unit], x, retain_graph=True)[0][0] for unit in range(HALF)]
    torch.testing.assert_close(torch.stack([slope[3] for slope in slopes]), expected)
    assert not any(slope[:3].any() for slope in slopes)


@pytest.mark.row("WMT-02")
def test_the_encoder_takes_turns_in_direction_and_the_top_hears_both_ends() -> None:
    encoder: Any = load("deep-att", "model.encoder.dim=16", "model.decoder.dim=16").build(seed=0).eval()
    parts = [layer.branches[0].part.part for layer in encoder.encoder.stack.calls()]
    assert [part.back for part in parts] == [False, True, False, True, False]
    tokens = torch.arange(7)[None]
    for place in (0, 6):
        other = tokens.clone()
        other[0, place] = 20
        changed = (encoder.encode(tokens, Frame()).x - encoder.encode(other, Frame()).x).abs().amax(-1)[0] > 0
        assert changed.all()


SMALL = ("model.encoder.dim=16", "model.decoder.dim=16")
PAPERS = {
    "deep-att": ("model.encoder.stack.depth=9", "model.decoder.stack.depth=7",
                 f"model.decoder.stack.layout={['look'] + 6 * ['layer']}"),
    "gnmt": ("model.encoder.stack.depth=8", f"model.encoder.stack.layout={['both', 'ahead'] + 6 * ['residual']}",
             "model.decoder.stack.depth=8", f"model.decoder.stack.layout={['look', 'layer'] + 6 * ['residual']}"),
}  # fmt: skip
"""Presets as deep as the papers have them; the ones that are part of the package are smaller."""


@pytest.mark.row("WMT-02")
def test_deep_att_of_the_paper_reads_with_nine_layers_and_writes_with_seven() -> None:
    model: Any = load("deep-att", *SMALL, *PAPERS["deep-att"]).build(seed=0).eval()
    readers = [layer.branches[0].part.part.back for layer in model.encoder.stack.calls()]
    writers = [layer.branches[0].part for layer in model.decoder.stack.calls()]
    assert readers == [False, True] * 4 + [False] and len(writers) == 7
    tokens, memory = torch.arange(5)[None], Memory(x=torch.randn(1, 6, 16))
    one, other = (model(tokens, Frame(memory=it)).y for it in (memory, Memory(x=memory.x.flip(1) * 2)))
    assert (one != other).any(-1).all()  # attention: what is read decides what is written
    with capture(model.decoder, "*.pattern") as seen:
        model(tokens, Frame(memory=memory))
    assert len(seen) == 1 and next(iter(seen)).startswith("stack.layers.0.")


@pytest.mark.row("WMT-03")
def test_gnmt_of_the_paper_has_eight_layers_in_each_half_and_its_first_reads_both_ways() -> None:
    model: Any = load("gnmt", *SMALL, *PAPERS["gnmt"]).build(seed=0).eval()
    readers, writers = model.encoder.stack.calls(), model.decoder.stack.calls()
    assert len(readers) == len(writers) == 8
    x = torch.randn(1, T, 16, requires_grad=True)
    for number, layer in enumerate(readers):
        (gradient,) = torch.autograd.grad(layer(x, Frame()).y[0, 2].sum(), x)
        assert bool(gradient[0, 3:].any()) == (number == 0) and gradient[0, 0].any()
    for number, layer in enumerate((*readers, *writers)):
        assert sum(isinstance(part, LSTMPart) for part in layer.modules()) == (2 if number == 0 else 1)


@pytest.mark.row("WMT-03", clause="residual connections from layer 3 on")
@pytest.mark.parametrize("overrides", [(), PAPERS["gnmt"]], ids=["small", "paper"])
def test_layers_of_gnmt_that_say_nothing_let_the_stream_pass_from_the_third_on(overrides: tuple[str, ...]) -> None:
    model: Any = load("gnmt", *SMALL, *overrides).build(seed=0).eval()
    for weight in model.parameters():
        weight.data.zero_()
    x, frame = torch.randn(1, T, 16), Frame(memory=Memory(x=torch.randn(1, 5, 16)))
    for half in (model.encoder, model.decoder):
        passes = [torch.equal(layer(x, frame).y, x) for layer in half.stack.calls()]
        assert passes == [False, False] + [True] * (len(passes) - 2) and len(passes) >= 4


@pytest.mark.row("WMT-03", clause="attention from the bottom decoder layer feeds all decoder layers")
@pytest.mark.parametrize("half", ["new", "added"])
def test_beside_a_context_only_the_first_half_changes(half: str) -> None:
    part, x = built("half_stream", half=half), torch.randn(2, T, DIM)
    below, context = x.chunk(2, dim=-1)
    said = part.part(x, Frame()).y
    y = part(x, Frame()).y
    torch.testing.assert_close(y[..., :HALF], said if half == "new" else below + said)
    assert torch.equal(y[..., HALF:], context) and said.shape[-1] == HALF


@pytest.mark.row("WMT-03", clause="attention from the bottom decoder layer feeds all decoder layers")
def test_all_layers_of_gnmt_read_what_its_bottom_layer_finds() -> None:
    model: Any = load("gnmt", "model.encoder.dim=16", "model.decoder.dim=16").build(seed=0).eval()
    contexts: list[Tensor] = []
    for module in model.decoder.modules():
        if isinstance(module, BranchModule):
            module.register_forward_hook(lambda _module, _args, out: contexts.append(out.y[..., 8:]))
    memory = model.encode(torch.arange(7)[None], Frame())
    model(torch.arange(5)[None], Frame(memory=memory))
    assert len(contexts) == 4 and all(torch.equal(contexts[0], other) for other in contexts)
    contexts.clear()
    model(torch.arange(5)[None], Frame(memory=Memory(x=memory.x.flip(1) * 2)))
    assert contexts[0].abs().sum() > 0


@pytest.mark.row("WMT-03")
def test_gnmts_bottom_layer_looks_with_the_state_of_the_word_before() -> None:
    look = {"kind": "additive_attention"}
    spec = decode(PartSpec, {"kind": "attention_fed", "part": LSTM, "look": look, "gives": "state_and_context"})
    part: Any = spec.build(Site(dim=DIM, memory_dim=HALF))
    initialise(part, NormalInit(deviation=0.5), seed=0)
    memory, x, cell = torch.randn(2, 5, HALF), torch.randn(2, T, DIM), nn.LSTMCell(DIM + HALF, HALF)
    with torch.no_grad():
        for theirs, mine in zip(cell.parameters(), part.part.weights, strict=True):
            theirs.copy_(mine)
    h, c, said = torch.zeros(2, HALF), torch.zeros(2, HALF), []
    for t in range(T):
        scores = torch.tanh(part.look.query(h)[:, None] + part.look.key(memory)) @ part.look.score.weight[0]
        found = torch.einsum("bs,bsd->bd", scores.softmax(-1), memory)
        h, c = cell(torch.cat((x[:, t], found), dim=-1), (h, c))
        said.append(torch.cat((h, found), dim=-1))
    torch.testing.assert_close(part(x, Frame(memory=Memory(x=memory))).y, torch.stack(said, dim=1))


def test_odd_widths_and_parts_that_give_no_half_are_refused() -> None:
    for kind in ("fast_forward", "half_stream"):
        with pytest.raises(SpecError, match="has no halves"):
            decode(PartSpec, {"kind": kind, "part": LSTM}).build(Site(dim=7))
    with pytest.raises(SpecError, match="cannot give half"):
        built("half_stream", {"kind": "attention", "heads": 2})
