"""BigBird: a window of blocks, global blocks and random blocks in one mask; global tokens of the text or extra ones."""

import pytest
import torch
from torch import Tensor

from anyformer.core import Frame, Marks, MaskRule, Model, Site
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Encoder, Stack
from anyformer.parts.combine.extra_tokens import ExtraTokens
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.joins.replace import Replace
from anyformer.parts.masks.global_tokens import GlobalTokens
from anyformer.parts.masks.random_keys import RandomKeys
from anyformer.parts.masks.window import Window
from anyformer.parts.mixers.attention import Attention

row = pytest.mark.row
LENGTH, BLOCK, VOCAB, DIM = 1024, 64, 11, 12


def dense(rule: MaskRule, length: int) -> Tensor:
    marks = Marks(torch.arange(length))
    return rule.allows(marks.as_queries(), marks.as_keys())


@row("XF-06", clause="a window of 3 blocks, global blocks and r random blocks together")
@pytest.mark.parametrize("count", [1, 3])
def test_a_block_sees_its_neighbours_the_global_blocks_and_as_many_random_ones_as_it_should(count: int) -> None:
    random = RandomKeys(count=count, length=LENGTH, block=BLOCK)
    rule = Window(size=2, block=BLOCK) | GlobalTokens(tokens=2, block=BLOCK) | random
    mask, picks = dense(rule, LENGTH), dense(random, LENGTH)
    blocks, drawn = mask[::BLOCK, ::BLOCK], picks[::BLOCK, ::BLOCK]
    assert torch.equal(mask, blocks.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1))
    assert (drawn.sum(1) == count).all()
    for i in range(LENGTH // BLOCK):
        seen = {i - 1, i, i + 1, 0, 1} | set(drawn[i].nonzero().flatten().tolist())
        expected = set(range(16)) if i < 2 else seen & set(range(16))
        assert set(blocks[i].nonzero().flatten().tolist()) == expected
    away = [set(drawn[i].nonzero().flatten().tolist()) - {i - 1, i, i + 1, 0, 1} for i in range(2, 16)]
    assert sum(map(len, away)) > 5 * count  # random blocks that neither of the other rules has


def model(extra: bool, layers: int = 2) -> Model:
    """Attention with two global tokens: extra ones, or the first of the text."""
    look = Branch(part=Attention(heads=3, mask=Window(size=2) | GlobalTokens(tokens=2)))
    front = Block(branches=(Branch(part=ExtraTokens(tokens=2), place="none", join=Replace()),))
    layer = Block(branches=(look,))
    blocks = {"front": front, "layer": layer} if extra else {"layer": layer}
    layout = (*(("front",) if extra else ()), *("layer" for _ in range(layers)))
    stack = Stack(blocks=blocks, layout=layout, depth=len(layout))
    return Encoder(vocab=VOCAB, dim=DIM, stack=stack, init=NormalInit(deviation=0.4)).build().double().eval()


def felt(module: Model, length: int = 16) -> Tensor:
    """Which outputs change with which words: [out, word]."""
    tokens = torch.randint(0, VOCAB, (1, length), generator=torch.Generator().manual_seed(1))
    before = module(tokens, Frame()).y[0]
    rows = []
    for place in range(length):
        changed = tokens.clone()
        changed[0, place] = (changed[0, place] + 1) % VOCAB
        rows.append((module(changed, Frame()).y[0] != before).any(-1))
    return torch.stack(rows, dim=1)


@row("XF-06", clause="global tokens are existing ones (ITC) or extra ones (ETC)")
def test_words_or_extra_tokens_carry_everything_everywhere_in_two_layers() -> None:
    near = (torch.arange(16)[:, None] - torch.arange(16)).abs() < 2
    inside, outside = (felt(model(extra=extra, layers=1)) for extra in (False, True))
    expected = near.clone()
    expected[:2], expected[:, :2] = True, True
    assert torch.equal(inside, expected)  # the first two words see all and are seen by all
    assert outside.shape == (18, 16) and outside[:2].all()  # the extra tokens see all
    assert torch.equal(outside[2:], near)  # and no word is global: in one layer it reaches its neighbours only
    assert felt(model(extra=False)).all() and felt(model(extra=True)).all()


@row("XF-06", clause="global tokens are existing ones (ITC) or extra ones (ETC)")
def test_extra_tokens_are_learned_and_stand_in_front_of_the_text() -> None:
    part = ExtraTokens(tokens=2).build(Site(dim=DIM, causal=False))
    torch.nn.init.normal_(part.vectors)
    x, valid = torch.randn(3, 5, DIM), torch.arange(5) < torch.tensor([[5], [2], [4]])
    out = part(x, Frame(valid=valid))
    assert torch.equal(out.y[:, 2:], x) and torch.equal(out.y[:, :2], part.vectors.expand(3, -1, -1))
    assert out.frame.valid.sum(1).tolist() == [7, 4, 6] and out.frame.valid[:, :2].all()
    out.y.sum().backward()
    assert torch.equal(part.vectors.grad, torch.full((2, DIM), 3.0))


def test_tokens_cannot_be_put_in_front_of_packed_texts_or_in_a_decoder() -> None:
    with pytest.raises(SpecError, match="in an encoder"):
        ExtraTokens().build(Site(dim=DIM))
    part = ExtraTokens().build(Site(dim=DIM, causal=False))
    with pytest.raises(SpecError, match="one document from place 0"):
        part(torch.randn(1, 4, DIM), Frame(segments=torch.tensor([[0, 0, 1, 1]])))
