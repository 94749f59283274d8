"""A head that has to fetch one token learns to attend to it, and the probe names its role."""

import pytest
import torch
import torch.nn.functional as F

from anyformer.analysis.head_roles import head_roles
from anyformer.core import Frame, capture
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.positions.learned import LearnedPosition

VOCAB, LENGTH = 16, 12
FETCHED = {
    "previous token": lambda tokens: tokens.roll(1, 1),
    "first token": lambda tokens: tokens[:, :1].expand_as(tokens),
}


@pytest.mark.learn
@pytest.mark.row("VIZ-12", clause="probing: what a head does is read off by a probe")
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("role", FETCHED)
def test_the_role_of_a_trained_head_is_the_one_that_it_was_trained_for(role: str, seed: int) -> None:
    stack = Stack(blocks={"layer": Block(branches=(Branch(part=Attention(heads=1)),))}, depth=1)
    model = Decoder(vocab=VOCAB, dim=64, max_len=LENGTH, position=LearnedPosition(), stack=stack).build(seed=seed)
    optimizer, rng = torch.optim.Adam(model.parameters(), lr=3e-3), torch.Generator().manual_seed(seed)

    def draw(rows: int) -> torch.Tensor:
        return torch.randint(VOCAB, (rows, LENGTH), generator=rng)

    for _ in range(600):
        tokens = draw(64)
        logits = model(tokens, Frame()).y[:, 1:]
        loss = F.cross_entropy(logits.flatten(0, 1), FETCHED[role](tokens)[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tokens = draw(64)
    with capture(model.eval(), "*pattern") as seen, torch.no_grad():
        right = (model(tokens, Frame()).y[:, 1:].argmax(-1) == FETCHED[role](tokens)[:, 1:]).float().mean()
    assert right > 0.95
    ((patterns,),) = seen.values()
    names = [named[0].name if (named := head_roles(pattern, row.tolist()))[0] else None
             for pattern, row in zip(patterns, tokens, strict=True)]  # fmt: skip
    assert names.count(role) > 0.9 * len(names)
