"""Depth without norms: Fixup trains 24 layers, the same layers with plain residual connections diverge."""

import math

import pytest
import torch
import torch.nn.functional as F
from tests.learning.conftest import Store

from anyformer.core import Frame, Model
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.combine.shifted import Shifted
from anyformer.parts.heads.untied import Untied
from anyformer.parts.inits.fixup import FixupInit
from anyformer.parts.inits.xavier import Xavier
from anyformer.parts.joins.add import Add
from anyformer.parts.joins.fixup import FixupJoin
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.positions.rope import Rope

SYMBOLS, PERIOD = 11, 4


def without_norms(fixup: bool) -> Model:
    parts, join = (Attention(heads=4, position=Rope()), MLP(activation="relu")), FixupJoin() if fixup else Add()
    branches = [Branch(part=Shifted(part=part) if fixup else part, place="none", join=join) for part in parts]
    stack = Stack(blocks={"layer": Block(branches=tuple(branches))}, depth=24)
    init = FixupInit() if fixup else Xavier()
    return Decoder(vocab=SYMBOLS, dim=32, stack=stack, head=Untied(), init=init).build(seed=0)


def losses_of(model: Model, steps: int) -> list[float]:
    """Losses of updates on rows of four random symbols that repeat: only the symbol four places before is of use."""
    rng, losses = torch.Generator().manual_seed(0), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    for _ in range(steps):
        words = torch.randint(SYMBOLS, (32, PERIOD), generator=rng).repeat(1, 4)
        logits = model(words[:, :-1], Frame()).y[:, PERIOD - 1 :]
        loss = F.cross_entropy(logits.flatten(0, 1), words[:, PERIOD:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
@pytest.mark.row("NAR-17", clause="trains at 24 or more layers without a norm")
def test_fixup_trains_24_layers_without_a_norm_where_plain_residual_connections_diverge(store: Store) -> None:
    fixup, plain = losses_of(without_norms(fixup=True), 120), losses_of(without_norms(fixup=False), 1)
    blind, last = math.log(SYMBOLS), sum(fixup[-10:]) / 10
    store({"first loss, fixup": fixup[0], "last loss, fixup": last, "first loss, plain": plain[0], "blind": blind})
    assert fixup[0] == pytest.approx(blind, abs=1e-4), "the head starts at 0"
    assert last < blind / 4
    assert plain[0] > 100 * blind
