"""The whole encoder-decoder against torch.nn.Transformer with the same weights, and its halves by themselves."""

from dataclasses import replace
from functools import partial
from typing import Literal

import pytest
import torch
from tests.equality.comparing import check_equal, check_gradients, check_outputs, lengths_mask, randomise
from tests.equality.copying import copy, torch_transformer
from torch import Tensor, nn

from anyformer.core import Frame, MaskRule, Memory
from anyformer.models import Block, Branch, Decoder, Encoder, EncoderDecoder, Stack
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.combine.cross import Cross
from anyformer.parts.embeddings.plain import Plain
from anyformer.parts.masks.window import Window
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.layer import LayerNorm
from anyformer.parts.positions.sinusoidal import Sinusoidal

VOCAB, DIM, HEADS, HIDDEN, LAYERS, T, S = 50, 32, 4, 48, 2, 7, 9
Place = Literal["pre", "post"]


class TorchTransformer(nn.Module):
    """nn.Transformer between an embedding (times sqrt(d), plus waves) and the same embedding."""

    def __init__(self, norm_first: bool):
        super().__init__()
        self.words = nn.Embedding(VOCAB, DIM)
        self.transformer = nn.Transformer(
            DIM, HEADS, LAYERS, LAYERS, HIDDEN, 0.0, norm_first=norm_first, batch_first=True
        )

    def forward(self, source: Tensor, target: Tensor, exists: Tensor, valid: Tensor, source_mask: Tensor) -> Tensor:
        hidden = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        y = self.transformer(
            self.enter(source),
            self.enter(target),
            src_mask=source_mask,
            tgt_mask=hidden,
            src_key_padding_mask=~exists,
            tgt_key_padding_mask=~valid,
            memory_key_padding_mask=~exists,
        )
        return y @ self.words.weight.T

    def enter(self, tokens: Tensor) -> Tensor:
        place, wave = torch.arange(tokens.shape[1])[:, None], torch.arange(DIM)[None]
        angle = place * 10_000.0 ** (-(wave // 2 * 2) / DIM)
        return self.words(tokens) * DIM**0.5 + torch.where(wave % 2 == 0, angle.sin(), angle.cos())


def branches(place: Place, *parts: Attention | Cross | MLP) -> Block:
    return Block(branches=tuple(Branch(part=part, norm=LayerNorm(), place=place) for part in parts))


def halves(place: Place = "post", mask: MaskRule | None = None) -> tuple[Encoder, Decoder]:
    look, think = Attention(heads=HEADS, bias=True), MLP(hidden=HIDDEN, activation="relu", bias=True)
    read, write = (
        branches(place, Attention(heads=HEADS, bias=True, mask=mask), think),
        branches(place, look, Cross(part=look), think),
    )
    embedding = Plain(scale="sqrt_dim")
    encoder = Encoder(
        vocab=VOCAB,
        dim=DIM,
        stack=Stack(blocks={"read": read}, depth=LAYERS),
        embedding=embedding,
        position=Sinusoidal(),
        exit_norm=LayerNorm(),
    )
    decoder = Decoder(
        vocab=VOCAB,
        dim=DIM,
        stack=Stack(blocks={"write": write}, depth=LAYERS),
        embedding=embedding,
        position=Sinusoidal(),
        exit_norm=LayerNorm(),
    )
    return encoder, decoder


def sentences() -> tuple[Tensor, Tensor]:
    return torch.randint(VOCAB, (2, S)), torch.randint(VOCAB, (2, T))


@pytest.mark.row(
    "SUM-02",
    clause=(
        "standard encoder-decoder, decoder attends the final encoder output",
        "equals torch.nn.Transformer with the weights copied",
    ),
)
@pytest.mark.row(
    "ATT-10",
    clause=(
        "q_i = Q z_i comes from the decoder's self-attention output",
        "every decoder layer reads the final encoder output",
    ),
)
@pytest.mark.row("POS-04", clause="add: x + p")
@pytest.mark.row("POS-05", clause="the original adds p to x before the projections: q = W (x + p)")
@pytest.mark.row(
    "TRF-03",
    clause=(
        "embeddings are multiplied by sqrt(d) and positions are added",
        "N encoder layers, and N decoder layers over the shifted targets",
        "every decoder layer attends to the final encoder output",
        "a linear layer and a softmax end it",
        "equals torch.nn.Transformer",
    ),
)
@pytest.mark.row(
    "TRF-10", clause=("pre: x + F(norm(x)), with a final norm", "both equal torch with norm_first set alike")
)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("place", ["pre", "post"])
def test_encoder_decoder_equals_torch(place: Place, window: int | None) -> None:
    peer = randomise(TorchTransformer(norm_first=place == "pre"))
    encoder, decoder = halves(place, Window(size=window) if window else None)
    ours = EncoderDecoder(encoder=encoder, decoder=decoder).build().eval()
    table = partial(torch_transformer, layers=LAYERS, place="before" if place == "pre" else "after")
    copy(peer, ours, table)
    (source, target), exists, valid = sentences(), lengths_mask([S, 6]), lengths_mask([T, 4])
    far = (torch.arange(S)[:, None] - torch.arange(S)).abs() >= (window or S)
    memory = ours.encode(source, Frame(valid=exists))
    logits = ours(target, Frame(valid=valid, memory=memory)).y
    check_outputs(logits[valid], peer(source, target, exists, valid, far)[valid])
    check_gradients(ours, peer, table)


@pytest.mark.row("SUM-02", clause="standard encoder-decoder, decoder attends the final encoder output")
@pytest.mark.row(
    "TRF-15",
    clause=(
        "encoder and decoder are independent functional models",
        "the composite feeds the encoder output into the middle of the decoder",
        "encoder and decoder can each be instantiated alone",
        "the composite equals wiring the two by hand",
    ),
)
@pytest.mark.parametrize("stepwise", [False, True])
def test_the_whole_is_its_halves_wired_by_hand(stepwise: bool) -> None:
    encoder, decoder = halves()
    whole = EncoderDecoder(encoder=encoder, decoder=decoder, inputs="separate").build(seed=3).eval()
    reader, writer = encoder.build(seed=4).eval(), decoder.build(seed=5).eval()
    for alone, half in ((reader, whole.encoder), (writer, whole.decoder)):
        alone.load_state_dict(half.state_dict())
    (source, target), exists = sentences(), lengths_mask([S, 6])
    expected = whole(target, Frame(memory=whole.encode(source, Frame(valid=exists)))).y
    memory = Memory(x=reader(source, Frame(valid=exists)).y, valid=exists)
    if not stepwise:
        check_equal(writer(target, Frame(memory=memory)).y, expected)
        return
    state = writer.init_state(2, T, memory)
    for t in range(T):
        out = writer(target[:, t : t + 1], Frame(positions=torch.full((2, 1), t)), state)
        check_equal(out.y[:, 0], expected[:, t])
        state = out.state


@pytest.mark.row("TRF-15", clause="encoder and decoder can each be exported")
@pytest.mark.parametrize("half", ["encoder", "decoder"])
def test_each_half_can_be_exported(half: str) -> None:
    encoder, decoder = halves()
    model = Alone((encoder if half == "encoder" else decoder).build().eval())
    source, target = torch.randn(2, S, DIM), torch.randint(VOCAB, (2, T))
    program = torch.export.export(model, (target, source))
    check_equal(program.module()(target, source), model(target, source))


def test_a_model_is_exported_with_its_whole_output() -> None:
    _, decoder = halves()
    stack = Stack(blocks={"layer": Block(branches=(Branch(part=MLP()),))}, depth=2)
    model, tokens = replace(decoder, stack=stack).build().eval(), torch.randint(VOCAB, (2, T))
    program = torch.export.export(model, (tokens,))
    check_equal(program.module()(tokens).y, model(tokens).y)


class Alone(nn.Module):
    """Tensors in, a tensor out: what can be exported."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, memory: Tensor) -> Tensor:
        return self.model(tokens, Frame(memory=Memory(x=memory))).y
