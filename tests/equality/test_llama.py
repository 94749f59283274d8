"""Llama against Hugging Face's with the same weights: grouped heads, rotary positions, RMS norms, SwiGLU."""

from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.equality.comparing import check_equal, check_gradients, check_input_gradients, check_outputs, randomise, twin
from tests.equality.copying import copy, linear, llama
from tests.equality.decoding import generate, greedy, padded, step_by_step

from anyformer.core import Frame, HeadSpec, Site, Work, cost
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.parts.channels.glu import GLU
from anyformer.parts.heads.tied import Tied
from anyformer.parts.heads.untied import Untied
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.rms import RMSNorm
from anyformer.parts.positions.rope import Rope

VOCAB, DIM, HEADS, GROUPS, HIDDEN, LAYERS, LENGTH = 97, 32, 4, 2, 48, 2, 20
HEAD: dict[bool, HeadSpec] = {True: Tied(), False: Untied()}
TABLE = partial(llama, layers=LAYERS)


def spec(tied: bool = True, max_len: int = 64) -> Decoder:
    parts = (
        Attention(heads=HEADS, kv_heads=GROUPS, position=Rope(base=500.0)),
        GLU(hidden=HIDDEN, activation="silu"),
    )
    block = Block(branches=tuple(Branch(part=part, norm=RMSNorm(eps=1e-5)) for part in parts))
    stack = Stack(blocks={"layer": block}, depth=LAYERS)
    return Decoder(vocab=VOCAB, dim=DIM, stack=stack, max_len=max_len, exit_norm=RMSNorm(eps=1e-5), head=HEAD[tied])


def config(transformers: ModuleType, tied: bool) -> Any:
    return transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=DIM,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=GROUPS,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",
    )


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def pair(transformers: ModuleType, request: pytest.FixtureRequest) -> tuple[Any, Any]:
    theirs = randomise(transformers.LlamaForCausalLM(config(transformers, request.param)))
    ours = spec(request.param).build().eval()
    copy(theirs, ours, TABLE)
    return ours, theirs


@pytest.mark.row("NAR-09")
def test_llama_equals_hugging_face(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    tokens = torch.randint(VOCAB, (3, LENGTH))
    check_outputs(ours(tokens, Frame()).y, theirs(tokens).logits)
    check_gradients(ours, theirs, TABLE)


@pytest.mark.row("NAR-09", clause="equals transformers' LLaMA MLP (gate, up, down), copied weights")
def test_swiglu_equals_the_feed_forward_of_llama(transformers: ModuleType) -> None:
    mlp = transformers.models.llama.modeling_llama.LlamaMLP
    theirs, ours = randomise(mlp(config(transformers, True))), GLU(hidden=HIDDEN).build(Site(dim=DIM)).eval()

    def table(read: Any) -> Any:
        return linear(read, "up", "gate_proj", "up_proj") | linear(read, "down", "down_proj")

    copy(theirs, ours, table)
    x, y = twin((2, 5, DIM))
    check_outputs(ours(x, Frame()).y, theirs(y))
    check_gradients(ours, theirs, table)
    check_input_gradients(x, y)


@pytest.mark.row("TSK-17", clause="cached logits equal uncached ones to 1e-5")
@pytest.mark.row("ATT-12", clause="decoding with a KV cache equals full recomputation to 1e-5")
def test_decoding_with_a_state_gives_their_logits(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    tokens = torch.randint(VOCAB, (3, LENGTH))
    check_equal(step_by_step(ours, tokens, prompt=3), theirs(tokens).logits)


@pytest.mark.row("TSK-17", clause="per-token cost is O(T) with the cache, O(T^2) without")
def test_a_step_costs_as_much_as_there_is_past_and_a_recomputation_its_square() -> None:
    lengths = (100, 200, 300)
    step = [cost(spec(), Work(length=1, past=n)).total.flops_forward for n in lengths]
    again = [cost(spec(), Work(length=n)).total.flops_forward for n in lengths]
    assert step[2] - step[1] == step[1] - step[0] > 0
    assert again[2] - again[1] > again[1] - again[0] > 0


@pytest.mark.row("TSK-17")
def test_a_left_padded_batch_equals_theirs_and_each_prompt_alone(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    prompts = [torch.randint(VOCAB, (n,)) for n in (3, 7, 1)]
    tokens, frame = padded(prompts, "left")
    for row, prompt in zip(ours(tokens, frame).y, prompts, strict=True):
        check_equal(row[-len(prompt) :], theirs(prompt[None]).logits[0])
    assert greedy(ours, tokens, 8, frame).tolist() == generate(theirs, tokens, frame.valid.long(), 8).tolist()


@pytest.mark.row("RNN-20", clause="the parameter count does not change with T")
def test_the_number_of_parameters_does_not_depend_on_the_length() -> None:
    short, long = (spec(max_len=max_len).build() for max_len in (8, 4096))
    assert sum(p.numel() for p in short.parameters()) == sum(p.numel() for p in long.parameters())
    tokens = torch.randint(VOCAB, (1, 300))
    check_equal(short(tokens, Frame()).y, long(tokens, Frame()).y)
