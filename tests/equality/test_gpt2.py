"""GPT-2 against Hugging Face's with the same weights."""

from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.equality.comparing import check_equal, check_gradients, check_outputs, randomise
from tests.equality.copying import copy, gpt2
from tests.equality.decoding import generate, greedy, padded, step_by_step

from anyformer.core import Frame
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.layer import LayerNorm
from anyformer.parts.positions.learned import LearnedPosition

VOCAB, DIM, HEADS, LAYERS, LENGTH = 97, 32, 4, 2, 24
TABLE = partial(gpt2, layers=LAYERS)


def spec() -> Decoder:
    parts = Attention(heads=HEADS, bias=True), MLP(activation="gelu_tanh", bias=True)
    block = Block(branches=tuple(Branch(part=part, norm=LayerNorm()) for part in parts))
    stack = Stack(blocks={"layer": block}, depth=LAYERS)
    return Decoder(
        vocab=VOCAB, dim=DIM, stack=stack, max_len=LENGTH, position=LearnedPosition(), exit_norm=LayerNorm(eps=1e-5)
    )


def twins(transformers: ModuleType, std: float) -> tuple[Any, Any]:
    config = transformers.GPT2Config(
        vocab_size=VOCAB,
        n_positions=LENGTH,
        n_embd=DIM,
        n_layer=LAYERS,
        n_head=HEADS,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",
    )
    theirs, ours = randomise(transformers.GPT2LMHeadModel(config), std), spec().build().eval()
    copy(theirs, ours, TABLE)
    return ours, theirs


@pytest.fixture
def pair(transformers: ModuleType) -> tuple[Any, Any]:
    return twins(transformers, std=0.15)


@pytest.mark.row("PRE-20", clause="logits equal GPT-2 of transformers with copied weights")
@pytest.mark.row(
    "TRF-05",
    clause=(
        "a causal stack without cross-attention",
        "logits equal transformers GPT2LMHeadModel, weights copied, to 1e-4",
    ),
)
@pytest.mark.row("TRF-10", clause="pre: x + F(norm(x)), with a final norm")
def test_logits_and_gradients_equal_hugging_face(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    tokens = torch.randint(VOCAB, (3, LENGTH))
    check_outputs(ours(tokens, Frame()).y, theirs(tokens).logits)
    check_gradients(ours, theirs, TABLE)


@pytest.mark.row("TSK-17", clause="cached logits equal uncached ones to 1e-5")
@pytest.mark.row("ATT-12", clause="decoding with a KV cache equals full recomputation to 1e-5")
@pytest.mark.parametrize("prompt", [1, 5])
def test_decoding_with_a_state_gives_their_logits(pair: tuple[Any, Any], prompt: int) -> None:
    ours, theirs = pair
    tokens = torch.randint(VOCAB, (3, LENGTH))
    check_equal(step_by_step(ours, tokens, prompt), theirs(tokens).logits)


@pytest.mark.row("TRF-17", clause="greedy loop equals transformers generate(do_sample=False) on GPT-2")
def test_greedy_continuation_is_theirs(transformers: ModuleType) -> None:
    ours, theirs = twins(transformers, std=0.3)  # large enough that the words differ
    prompt = torch.randint(VOCAB, (3, 4))
    expected = generate(theirs, prompt, torch.ones_like(prompt), 12)
    assert greedy(ours, prompt, 12).tolist() == expected.tolist()
    assert len(expected.unique()) > 6  # not the same word again and again


@pytest.mark.row("TSK-17")
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_batch_equals_each_prompt_alone(pair: tuple[Any, Any], side: str) -> None:
    ours, theirs = pair
    prompts = [torch.randint(VOCAB, (n,)) for n in (3, 7, 1)]
    tokens, frame = padded(prompts, side)
    for row, valid, prompt in zip(ours(tokens, frame).y, frame.valid, prompts, strict=True):
        check_equal(row[valid], theirs(prompt[None]).logits[0])
    words = greedy(ours, tokens, 9, frame)
    alone = [generate(theirs, prompt[None], torch.ones_like(prompt[None]), 9)[0].tolist() for prompt in prompts]
    assert words.tolist() == alone


@pytest.mark.row(
    "RNN-20",
    clause=(
        "causal: y_t = f(x_1..x_t) with the same f and weights at each t",
        "f(x[:t])[-1] for each t equals one parallel call",
    ),
)
@pytest.mark.row("TRF-05", clause="a causal stack without cross-attention")
def test_prefixes_one_by_one_equal_one_parallel_call(pair: tuple[Any, Any]) -> None:
    ours, _ = pair
    tokens = torch.randint(VOCAB, (2, LENGTH))
    parallel = ours(tokens, Frame()).y
    for t in range(1, LENGTH + 1):
        check_equal(ours(tokens[:, :t], Frame()).y[:, -1], parallel[:, t - 1])
