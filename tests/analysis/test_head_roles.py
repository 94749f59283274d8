"""The role of a head is read off its weights, and is what the head was made or trained for."""

import pytest
import torch
from tests.viewing.small import built, encoder, pair

from anyformer.analysis.head_roles import RULES, head_roles, role_skills
from anyformer.viewing.attention_maps import looks

TOKENS = [3, 1, 4, 1, 5, 3, 1]
PROBING = pytest.mark.row("VIZ-12", clause="probing: what a head does is read off by a probe")


def following(name: str, *, causal: bool = False, strength: float = 1.0) -> torch.Tensor:
    """A head that follows a rule where it names a key, mixed with uniform weights."""
    even = torch.ones(len(TOKENS), len(TOKENS))
    even = even.tril() if causal else even
    named = RULES[name](torch.tensor(TOKENS)) & even.bool()
    rows = torch.where(named.any(-1, keepdim=True), named.float(), even)
    even, rows = (each / each.sum(-1, keepdim=True) for each in (even, rows))
    return strength * rows + (1 - strength) * even


@PROBING
@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
def test_a_head_that_follows_a_rule_has_its_name(causal: bool) -> None:
    names = [name for name in RULES if not (causal and name == "next token")]
    heads = torch.stack([following(name, causal=causal, strength=0.9) for name in names])
    roles = head_roles(heads, TOKENS)
    assert [role and role.name for role in roles] == names
    assert all(role is not None and 0.9 <= role.share < 1 for role in roles)


@PROBING
def test_even_weights_have_no_role_and_no_skill() -> None:
    for even in (torch.ones(2, 7, 7), torch.ones(2, 7, 7).tril()):
        weights = even / even.sum(-1, keepdim=True)
        assert head_roles(weights, TOKENS) == [None, None]
        for name, skills in role_skills(weights, TOKENS).items():
            assert skills[:, 1].abs().max() < 1e-6, name


@PROBING
def test_half_the_way_to_a_rule_is_a_role_and_less_is_none() -> None:
    heads = torch.stack([following("previous token", strength=strength) for strength in (0.45, 0.55)])
    weak, strong = head_roles(heads, TOKENS)
    assert weak is None and strong is not None and strong.skill == pytest.approx(0.55)


def test_where_no_token_comes_twice_no_head_looks_at_the_same_token() -> None:
    assert {"same token", "induction"}.isdisjoint(role_skills(torch.ones(1, 4, 4) / 4, range(4)))


def test_roles_are_those_of_the_tokens_that_a_stack_reads_and_cross_attention_has_none() -> None:
    spec, source = pair(), [7, 8, 9, 8]
    model = built(spec)
    stacks = {look.name: look for look in looks(spec, model, TOKENS, source)}
    for name, tokens in (("encoder", source), ("decoder", TOKENS)):
        for sheet in stacks[name].sheets:
            assert sheet.roles == tuple(head_roles(sheet.weights, tokens))
    assert all(sheet.roles is None for sheet in stacks["cross"].sheets)
    (one,) = looks(encoder(), built(encoder()), [place % 50 for place in range(200)])
    assert all(sheet.roles is not None and len(sheet.roles) == 2 for sheet in one.sheets)
