"""Transparent attention: every layer of the decoder has its own mean of all outputs of the encoder."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.core import Frame, Memory, capture
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Encoder, EncoderDecoder, Stack
from anyformer.models.single import stacks_of
from anyformer.parts.combine.cross import Cross
from anyformer.parts.combine.transparent import Transparent, TransparentPart
from anyformer.parts.combine.unfold import Unfold
from anyformer.parts.joins.replace import Replace
from anyformer.training import load

row = pytest.mark.row
DEPTHS, DIM, VOCAB = (4, 3), 12, 11
SOURCE, TARGET = torch.arange(14).view(2, 7) % VOCAB, torch.arange(10).view(2, 5) % VOCAB


def small(name: str, **dropout: float) -> EncoderDecoder:
    """The preset with few, narrow layers."""
    spec = load(name)
    assert isinstance(spec, EncoderDecoder)
    encoder, decoder = (
        replace(half, dim=DIM, vocab=VOCAB, stack=replace(half.stack, depth=depth))
        for half, depth in zip((spec.encoder, spec.decoder), DEPTHS, strict=True)
    )
    small = EncoderDecoder(encoder=encoder, decoder=decoder)
    path = "decoder.stack.blocks.layer.branches.1.part.dropout"
    return small.with_(path, dropout["dropout"]) if dropout else small


def noisy(spec: EncoderDecoder) -> Any:
    model, rng = spec.build().double(), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=rng)
    return model.eval()


def parts(model: Any) -> list[TransparentPart]:
    return [module for module in model.modules() if isinstance(module, TransparentPart)]


def outputs_of(encoder: Any, tokens: Tensor) -> list[Tensor]:
    """The input of an encoder's first layer and the outputs of its layers, the last one normalised."""
    x = encoder.embedding(tokens)
    outputs = [x]
    for block in encoder.stack.layers.values():
        for branch in block.branches:
            x = x + branch.part(branch.before(x, Frame()), Frame()).y
        outputs.append(x)
    return [*outputs[:-1], encoder.exit_norm(x, Frame())]


def exponentials(weights: Tensor) -> list[Tensor]:
    """The softmax, number by number."""
    total = sum(weight.exp() for weight in weights)
    return [weight.exp() / total for weight in weights]


@row("NAR-36", clause="decoder layer m attends to z_m = sum_n s_nm h_n over n = 0..N")
def test_every_layer_of_the_decoder_attends_to_its_own_mean() -> None:
    model = noisy(small("vanilla-transparent"))
    h, y = outputs_of(model.encoder, SOURCE), model.decoder.words.module(TARGET)
    for block, part in zip(model.decoder.stack.layers.values(), parts(model), strict=True):
        z = sum(share * output for share, output in zip(exponentials(part.weights), h, strict=True))
        look, cross, think = block.branches
        y = y + look.part(look.before(y, Frame()), Frame()).y
        y = y + part.part(cross.before(y, Frame()), Frame(memory=Memory(x=z))).y
        y = y + think.part(think.before(y, Frame()), Frame()).y
    slow = model.decoder.exit_norm(y, Frame())
    fast = model(TARGET, Frame(memory=model.encode(SOURCE)), logits=False).y
    torch.testing.assert_close(fast, slow)
    weights = list(model.parameters())
    wanted = torch.autograd.grad(slow.square().sum(), weights, allow_unused=True)
    torch.testing.assert_close(torch.autograd.grad(fast.square().sum(), weights, allow_unused=True), wanted)


@row(
    "NAR-36",
    clause=(
        "s is a softmax over the encoder layers of W, 13 x 12 at full size",
        "the embeddings count as layer 0: N + 1 = 13 encoder outputs",
    ),
)
def test_the_weights_at_full_size_are_13_by_12() -> None:
    model: Any = load("vanilla-transparent").build(device="meta")
    assert torch.stack([part.weights for part in parts(model)], dim=1).shape == (13, 12)
    layers = noisy(small("vanilla-transparent")).encode(SOURCE).layers
    assert len(layers) == DEPTHS[0] + 1


@row(
    "NAR-36",
    clause=(
        "columns of s sum to 1",
        "s is a softmax over the encoder layers of W, 13 x 12 at full size",
    ),
)
def test_the_shares_of_the_layers_sum_to_one_for_every_layer_of_the_decoder() -> None:
    model = noisy(small("vanilla-transparent"))
    with capture(model, "*.shares") as seen:
        model(TARGET, Frame(memory=model.encode(SOURCE)))
    columns = torch.stack([calls[0] for calls in seen.values()], dim=1)
    assert columns.shape == (DEPTHS[0] + 1, DEPTHS[1]) and (columns > 0).all()
    torch.testing.assert_close(columns.sum(0), torch.ones(DEPTHS[1], dtype=torch.float64))
    expected = torch.stack([torch.stack(exponentials(part.weights)) for part in parts(model)], dim=1)
    torch.testing.assert_close(columns, expected)


@row("NAR-36", clause="the embeddings count as layer 0: N + 1 = 13 encoder outputs")
def test_the_outputs_begin_with_the_embeddings_and_end_with_what_others_attend_to() -> None:
    model = noisy(small("vanilla-transparent"))
    memory = model.encode(SOURCE)
    assert torch.equal(memory.layers[0], model.encoder.embedding(SOURCE)) and torch.equal(memory.layers[-1], memory.x)
    torch.testing.assert_close(list(memory.layers), outputs_of(model.encoder, SOURCE))
    assert noisy(small("vanilla")).encode(SOURCE).layers == (), "kept only where they are read"


@row("NAR-36", clause="one-hot weight on the last layer equals vanilla")
def test_all_weight_on_the_last_layer_is_the_vanilla_model() -> None:
    model, vanilla = noisy(small("vanilla-transparent")), noisy(small("vanilla"))
    inner = {name.replace(".part.part.", ".part."): tensor for name, tensor in model.state_dict().items()}
    vanilla.load_state_dict({name: inner[name] for name in vanilla.state_dict()})
    for part in parts(model):
        part.weights.data.fill_(-1e9)[-1] = 0.0
    mine, theirs = (one(TARGET, Frame(memory=one.encode(SOURCE))).y for one in (model, vanilla))
    torch.testing.assert_close(mine, theirs)


@row("NAR-36", clause="gradient reaches the layer-0 embedding directly")
def test_the_gradient_reaches_the_embeddings_past_all_layers() -> None:
    model = noisy(small("vanilla-transparent"))
    memory = model.encode(SOURCE)
    cut = (memory.layers[0].detach().requires_grad_(), *(layer.detach() for layer in memory.layers[1:]))
    y = model(TARGET, Frame(memory=replace(memory, x=memory.x.detach(), layers=cut))).y
    (direct,) = torch.autograd.grad(y.square().mean(), cut[0])
    assert (direct.abs().amax(-1) > 0).all()


@row("NAR-36", clause="dropout acts on W")
def test_dropout_in_training_acts_on_the_weights_before_their_softmax() -> None:
    model = noisy(small("vanilla-transparent", dropout=0.5)).train()
    torch.default_generator.manual_seed(0)
    with capture(model, "*.shares") as seen:
        for _ in range(20):
            model(TARGET, Frame(memory=model.encode(SOURCE)))
    masks = torch.tensor(list(product((0.0, 2.0), repeat=DEPTHS[0] + 1)), dtype=torch.float64)  # kept ones are doubled
    for part, calls in zip(parts(model), seen.values(), strict=True):
        distances = (torch.stack(calls)[:, None] - (masks * part.weights.detach()).softmax(-1)).abs().amax(-1)
        assert distances.amin(1).max() < 1e-12 and len(distances.argmin(1).unique()) > 10
    with capture(model.eval(), "*.shares") as seen:
        model(TARGET, Frame(memory=model.encode(SOURCE)))
    for part, calls in zip(parts(model), seen.values(), strict=True):
        torch.testing.assert_close(calls[0], part.weights.detach().softmax(0))


@row("NAR-36")
def test_the_preset_changes_nothing_but_what_cross_attention_reads() -> None:
    mine, vanilla = (stacks_of(load(name)) for name in ("vanilla-transparent", "vanilla"))
    assert mine["encoder"] == vanilla["encoder"]
    branch = vanilla["decoder"].stack.blocks["layer"].branches[1]
    assert isinstance(branch.part, Cross)
    part = Transparent(part=branch.part.part, dropout=0.1)
    assert mine["decoder"].stack.blocks["layer"].branches[1] == replace(branch, part=part)


def test_it_needs_an_encoder_whose_layers_are_of_one_length() -> None:
    spec = small("vanilla-transparent")
    with pytest.raises(SpecError, match="needs an encoder"):
        spec.decoder.build(device="meta")
    unfold = Branch(part=Unfold(), place="none", join=Replace())
    encoder = Encoder(vocab=VOCAB, dim=DIM, stack=Stack(blocks={"a": Block(branches=(unfold,))}, depth=1))
    model = EncoderDecoder(encoder=encoder, decoder=replace(spec.decoder, vocab=VOCAB)).build()
    with pytest.raises(SpecError, match="all of one length"):
        model(TARGET, Frame(memory=model.encode(SOURCE)))


def test_layers_are_kept_where_activations_are_recomputed() -> None:
    model = noisy(small("vanilla-transparent")).train()
    whole = model.encode(SOURCE).layers
    model.encoder.stack.recompute([(0, 3, True), (3, 4, False)])
    torch.testing.assert_close(model.encode(SOURCE).layers, whole)
