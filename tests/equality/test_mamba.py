"""Mamba and Mamba-2 against Hugging Face's with the same weights: whole, token by token, and generating."""

from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.equality.comparing import backward, check_gradients, randomise
from tests.equality.copying import copy, mamba
from tests.equality.decoding import generate, greedy, padded, step_by_step
from torch import Tensor

from anyformer.core import Frame, PartSpec
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.parts.heads.tied import Tied
from anyformer.parts.mixers.mamba import Mamba
from anyformer.parts.mixers.mamba2 import Mamba2
from anyformer.parts.norms.rms import RMSNorm

VOCAB, DIM, LAYERS, LENGTH = 97, 32, 2, 70
NEAR = 1e-4
TABLE = partial(mamba, layers=LAYERS)
SHARED = {"vocab_size": VOCAB, "hidden_size": DIM, "num_hidden_layers": LAYERS, "tie_word_embeddings": True}
NO_WORDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
KINDS: dict[str, tuple[PartSpec, dict[str, int]]] = {
    "Mamba": (Mamba(states=8), {"state_size": 8}),
    "Mamba2": (
        Mamba2(head_dim=8, states=12, groups=2),
        {"state_size": 12, "head_dim": 8, "num_heads": 8, "n_groups": 2, "chunk_size": 16},
    ),
}


def spec(part: PartSpec) -> Decoder:
    stack = Stack(blocks={"layer": Block(branches=(Branch(part=part, norm=RMSNorm(eps=1e-5)),))}, depth=LAYERS)
    return Decoder(vocab=VOCAB, dim=DIM, stack=stack, exit_norm=RMSNorm(eps=1e-5), head=Tied())


@pytest.fixture(params=KINDS)
def pair(transformers: ModuleType, request: pytest.FixtureRequest) -> tuple[Any, Any]:
    part, options = KINDS[request.param]
    config = getattr(transformers, f"{request.param}Config")(**SHARED, **NO_WORDS, **options)
    theirs = randomise(getattr(transformers, f"{request.param}ForCausalLM")(config))
    ours = spec(part).build().eval()
    copy(theirs, ours, TABLE)
    return ours, theirs


def near(ours: Tensor, theirs: Tensor) -> None:
    assert (ours - theirs).abs().max() <= NEAR * max(1.0, theirs.abs().max().item())


@pytest.mark.row(
    "SSM-05",
    clause=(
        "step size = softplus(.) > 0; step size, B and C depend on the input",
        "state matrix A = -exp(A_log), always negative",
        "h_t = exp(dt_t A) h_{t-1} + dt_t B_t x_t, y_t = C_t h_t + D x_t",
        "block has a conv1d and a SiLU gate",
        "outputs equal transformers MambaModel after a weight copy",
    ),
)
def test_logits_and_gradients_equal_hugging_face(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    tokens = torch.randint(VOCAB, (2, LENGTH))
    mine, other = ours(tokens, Frame()).y, theirs(tokens, use_cache=False).logits
    near(mine, other)
    assert other.std() > 0.1
    backward(mine, other)
    check_gradients(ours, theirs, TABLE)


@pytest.mark.row("SSM-05", clause="h_t = exp(dt_t A) h_{t-1} + dt_t B_t x_t, y_t = C_t h_t + D x_t")
def test_token_by_token_through_the_state_gives_their_logits(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    tokens = torch.randint(VOCAB, (2, 12))
    with torch.no_grad():
        out, logits = theirs(tokens[:, :5], use_cache=True), []
        for at in range(5, 12):
            out = theirs(tokens[:, at : at + 1], cache_params=out.cache_params, use_cache=True)
            logits.append(out.logits)
        mine = step_by_step(ours, tokens, prompt=5)
        near(mine[:, 5:], torch.cat(logits, dim=1))
        near(mine, theirs(tokens, use_cache=False).logits)


@pytest.mark.row("SSM-05", "TSK-17")
def test_a_left_padded_batch_says_what_theirs_says(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    tokens, frame = padded([torch.randint(VOCAB, (n,)) for n in (3, 9, 1)], "left")
    assert frame.valid is not None
    assert greedy(ours, tokens, 8, frame).tolist() == generate(theirs, tokens, frame.valid.long(), 8).tolist()
