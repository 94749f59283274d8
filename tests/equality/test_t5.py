"""T5 against Hugging Face's with the same weights: 1.0 (relu, tied and scaled) and 1.1 (gated gelu, untied)."""

from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.equality.comparing import check_equal, check_gradients, check_outputs, lengths_mask, randomise
from tests.equality.copying import copy, t5
from tests.equality.decoding import greedy, step_by_step
from torch import Tensor, nn

from anyformer.core import Frame, HeadSpec, Memory, PartSpec
from anyformer.models import Block, Branch, Decoder, Encoder, EncoderDecoder, Stack
from anyformer.parts.channels.glu import GLU
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.combine.cross import Cross
from anyformer.parts.heads.tied import Tied
from anyformer.parts.heads.untied import Untied
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.rms import RMSNorm
from anyformer.parts.positions.t5_bias import T5Bias

VOCAB, DIM, HEADS, WIDTH, HIDDEN, LAYERS, S, T = 97, 32, 4, 6, 48, 2, 24, 20
BUCKETS, FAR = 8, 16  # few and near, so that all of them are used
TABLE = partial(t5, layers=LAYERS)
THINK: dict[str, PartSpec] = {
    "1.0": MLP(hidden=HIDDEN, activation="relu"),
    "1.1": GLU(hidden=HIDDEN, activation="gelu_tanh"),
}
HEAD: dict[str, HeadSpec] = {"1.0": Tied(scale="rsqrt_dim"), "1.1": Untied()}


def block(*parts: PartSpec) -> Block:
    return Block(branches=tuple(Branch(part=part, norm=RMSNorm(eps=1e-6)) for part in parts))


def spec(version: str) -> EncoderDecoder:
    look = Attention(heads=HEADS, head_dim=WIDTH, scale=1.0, position=T5Bias(buckets=BUCKETS, max_distance=FAR))
    cross = Cross(part=Attention(heads=HEADS, head_dim=WIDTH, scale=1.0))
    read = Stack(blocks={"read": block(look, THINK[version])}, depth=LAYERS)
    write = Stack(blocks={"write": block(look, cross, THINK[version])}, depth=LAYERS)
    return EncoderDecoder(
        encoder=Encoder(vocab=VOCAB, dim=DIM, stack=read, exit_norm=RMSNorm()),
        decoder=Decoder(vocab=VOCAB, dim=DIM, stack=write, exit_norm=RMSNorm(), head=HEAD[version]),
    )


def peer(transformers: ModuleType, version: str, std: float) -> Any:
    config = transformers.T5Config(
        vocab_size=VOCAB,
        d_model=DIM,
        d_kv=WIDTH,
        d_ff=HIDDEN,
        num_layers=LAYERS,
        num_heads=HEADS,
        relative_attention_num_buckets=BUCKETS,
        relative_attention_max_distance=FAR,
        dropout_rate=0.0,
        feed_forward_proj="relu" if version == "1.0" else "gated-gelu",
        tie_word_embeddings=version == "1.0",
        pad_token_id=0,
        eos_token_id=None,
        decoder_start_token_id=0,
        attn_implementation="eager",
    )
    model = transformers.T5ForConditionalGeneration(config)
    if version == "1.1":  # newer releases tie it whatever the config says
        model.lm_head.weight = nn.Parameter(torch.empty(VOCAB, DIM))
    return randomise(model, std)


def twins(transformers: ModuleType, version: str, std: float) -> tuple[Any, Any]:
    theirs, ours = peer(transformers, version, std), spec(version).build().eval()
    copy(theirs, ours, TABLE)
    return ours, theirs


@pytest.fixture(params=["1.0", "1.1"])
def pair(transformers: ModuleType, request: pytest.FixtureRequest) -> tuple[Any, Any]:
    return twins(transformers, request.param, std=0.1)  # unscaled scores grow with the weights, and rounding with them


def sentences() -> tuple[Tensor, Tensor, Tensor]:
    """Sources, which of their tokens exist (filled up on the right and on the left), and targets."""
    valid = lengths_mask([S, 5, 17])
    valid[2] = valid[2].flip(0)
    return torch.randint(1, VOCAB, (3, S)), valid, torch.randint(1, VOCAB, (3, T))


@pytest.mark.row(
    "PRE-19",
    clause=(
        "pre-norm with RMS norm in each sub-layer, no biases",
        "scores not divided by sqrt(d): the scale is folded into the init",
        "tied output logits multiplied by d^-1/2",
        "relative position bias",
        "equals T5ForConditionalGeneration with copied weights",
    ),
)
@pytest.mark.row("CLM-32", clause="encoder output is one vector per token, not a fixed-size state")
@pytest.mark.row("OPT-17", clause="T5: the scales of mesh, tied logits times d^-1/2")
@pytest.mark.row("NAR-06", clause="equals transformers' T5 v1.1 gated-gelu net with copied weights")
@pytest.mark.row("NAR-55", clause="shared bias: logits equal a weight-copied T5")
@pytest.mark.row(
    "POS-08",
    clause=(
        "shared: one table per stack, the first layer's; else one per layer",
        "no bias in cross-attention",
        "logits of a full T5 with copied weights are equal",
    ),
)
@pytest.mark.row("TRF-11", clause="output logits h E^T when tied, else by a matrix W of their own")
@pytest.mark.row("TRF-16", clause="logits = W h, then log_softmax, argmax, vocab[index]")
def test_t5_with_source_padding_equals_hugging_face(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    source, valid, target = sentences()
    memory = ours.encode(source, Frame(valid=valid))
    out = theirs(input_ids=source, attention_mask=valid.long(), decoder_input_ids=target)
    check_equal(memory.x[valid], out.encoder_last_hidden_state[valid])
    check_outputs(ours(target, Frame(memory=memory)).y, out.logits)
    check_gradients(ours, theirs, TABLE)


@pytest.mark.row("TSK-17", clause="cached logits equal uncached ones to 1e-5")
@pytest.mark.row("ATT-12", clause="decoding with a KV cache equals full recomputation to 1e-5")
def test_decoding_with_a_state_gives_their_logits(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    source, valid, target = sentences()
    logits = theirs(input_ids=source, attention_mask=valid.long(), decoder_input_ids=target).logits
    memory = ours.encode(source, Frame(valid=valid))
    check_equal(step_by_step(ours, target, prompt=2, memory=memory), logits)


@pytest.mark.row(
    "TRF-18",
    clause=(
        "the encoder takes the whole source in one parallel pass",
        "the decoder takes T sequential steps to generate T tokens",
        "forward calls are counted: 1 for the encoder, T for the decoder",
    ),
)
@pytest.mark.row("TRF-17")
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_greedy_words_are_theirs_after_one_encoder_call_and_a_decoder_call_each(
    transformers: ModuleType, version: str
) -> None:
    ours, theirs = twins(transformers, version, std=0.3)  # large enough that the words differ
    (source, valid, _), new, calls = sentences(), 14, {"encoder": 0, "decoder": 0}

    def count(half: str) -> Any:
        return lambda *_: calls.update({half: calls[half] + 1})

    ours.encoder.stack.register_forward_hook(count("encoder"))
    ours.decoder.stack.register_forward_hook(count("decoder"))
    start = torch.zeros(3, 1, dtype=torch.long)
    words = greedy(ours, start, new, memory=ours.encode(source, Frame(valid=valid)))
    expected = theirs.generate(source, attention_mask=valid.long(), do_sample=False, max_new_tokens=new)
    assert words.tolist() == expected[:, 1:].tolist()
    assert len(words.unique()) > 6  # not the same word again and again
    assert calls == {"encoder": 1, "decoder": new}


@pytest.mark.row("TRF-15", clause="encoder and decoder are independent functional models")
def test_each_half_of_t5_reads_and_writes_alone(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    source, valid, target = sentences()
    seen = theirs.encoder(input_ids=source, attention_mask=valid.long()).last_hidden_state
    check_equal(ours.encoder(source, Frame(valid=valid)).y[valid], seen[valid])
    written = ours.decoder(target, Frame(memory=Memory(x=seen, valid=valid))).y
    check_equal(written, theirs(encoder_outputs=(seen,), attention_mask=valid.long(), decoder_input_ids=target).logits)
