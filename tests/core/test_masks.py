"""Rules combine, are counted, and survive the way to a file and back."""

import random

import pytest
import torch

from anyformer.core import And, Causal, Full, Marks, MaskRule, Or, Segment, decode, kind_of
from anyformer.core.discovery import discover
from anyformer.core.masks import Band, dense, rule_from
from anyformer.parts.masks.block_local import BlockLocal
from anyformer.parts.masks.dilated import Dilated
from anyformer.parts.masks.global_tokens import GlobalTokens
from anyformer.parts.masks.prefix import Prefix
from anyformer.parts.masks.window import Window

NEAR, BLOCK = Window(size=3), BlockLocal(size=4)


def test_both_allows_what_each_allows() -> None:
    assert torch.equal(dense(NEAR & BLOCK, 16, 16), dense(NEAR, 16, 16) & dense(BLOCK, 16, 16))


def test_either_allows_what_one_allows() -> None:
    assert torch.equal(dense(NEAR | BLOCK, 16, 16), dense(NEAR, 16, 16) | dense(BLOCK, 16, 16))


@pytest.mark.row("XF-09", clause="Longformer's mask is window, dilation and global tokens")
@pytest.mark.parametrize("causal", [False, True])
def test_longformers_mask_is_a_window_a_dilated_one_and_global_tokens(causal: bool) -> None:
    rule = Window(size=3) | Dilated(size=4, step=5) | GlobalTokens(tokens=2)
    seen = dense(rule & Causal() if causal else rule, 40, 40)
    for i in range(40):
        near = {j for j in range(40) if abs(i - j) <= 2}
        far = {i + 5 * n for n in range(-3, 4)}
        whole = set(range(40)) if i < 2 else {0, 1}
        allowed = {j for j in near | far | whole if 0 <= j < 40 and not (causal and j > i)}
        assert set(seen[i].nonzero()[:, 0].tolist()) == allowed


def test_joining_more_rules_of_a_kind_makes_one_flat_rule() -> None:
    assert NEAR & BLOCK & Causal() == And(rules=(NEAR, BLOCK, Causal())) == NEAR & (BLOCK & Causal())
    assert NEAR | BLOCK | Causal() == Or(rules=(NEAR, BLOCK, Causal())) == NEAR | (BLOCK | Causal())
    assert (NEAR | BLOCK) & Causal() == And(rules=(Or(rules=(NEAR, BLOCK)), Causal()))


def test_what_changes_nothing_is_left_out() -> None:
    assert NEAR & Full() == Full() & NEAR == NEAR & NEAR == NEAR | NEAR == NEAR
    assert Full() & Full() == NEAR | Full() == Full() | BLOCK == Full()
    assert NEAR & BLOCK & NEAR == NEAR & BLOCK


@pytest.mark.parametrize("rule", [NEAR & Causal(), NEAR | BLOCK, (NEAR | BLOCK) & Causal(), Full(), Segment()], ids=str)
def test_a_rule_comes_back_from_plain_data(rule: MaskRule) -> None:
    again = decode(MaskRule, rule.to_dict())
    assert again == rule
    assert hash(again) == hash(rule)


@pytest.mark.parametrize("rule", [Full(), Causal(), NEAR & Causal(), (NEAR | BLOCK) & Causal(), Segment()], ids=str)
@pytest.mark.parametrize(("q_len", "k_len"), [(1, 1), (9, 9), (1, 9), (4, 9), (1500, 1600)])
def test_pairs_counts_what_is_allowed(rule: MaskRule, q_len: int, k_len: int) -> None:
    assert rule.pairs(q_len, k_len) == int(dense(rule, q_len, k_len).sum())


def test_queries_are_the_last_of_the_keys() -> None:
    assert torch.equal(dense(Causal(), 3, 7), dense(Causal(), 7, 7)[4:])


def test_a_default_device_does_not_matter() -> None:
    with torch.device("meta"):
        assert (NEAR & Causal()).pairs(10, 11) == int(dense(NEAR & Causal(), 10, 11).sum())


@pytest.mark.row("OPT-18", clause="several examples share a row; sequence ids mask attention between them")
def test_segments_hide_other_documents() -> None:
    segment = torch.tensor([[0, 0, 1, 1, 1], [3, 4, 4, 5, 5]])
    marks = Marks(torch.arange(5)[None], segment=segment)
    allowed = Segment().allows(marks.as_queries(), marks.as_keys())
    assert allowed.tolist() == [[[a == b for b in row] for a in row] for row in segment.tolist()]


def test_a_joined_rule_is_static_only_if_all_are() -> None:
    assert (NEAR & Causal()).static and (NEAR | BLOCK).static
    assert not (NEAR & Segment()).static and not (NEAR | Segment()).static


@pytest.mark.parametrize(
    ("rule", "same"),
    [
        (Prefix() | Causal(), Prefix()),
        (Prefix() | NEAR, Prefix()),  # what a window sees of the past, a prefix sees too
        (Or(rules=(Prefix(), Full())), Prefix()),
        (NEAR & Prefix(), NEAR & Prefix()),
        ((Prefix() | NEAR) & NEAR, Prefix() & NEAR),
        (NEAR | BLOCK, (NEAR | BLOCK) & Causal()),
        (NEAR & BLOCK, NEAR & BLOCK & Causal()),
    ],
    ids=str,
)
def test_a_causal_stack_hides_the_future_but_for_the_prefix(rule: MaskRule, same: MaskRule) -> None:
    at, prefix = torch.arange(12), torch.tensor(5)
    q, k = Marks(at[:, None], prefix=prefix), Marks(at[None], prefix=prefix)
    assert torch.equal(rule.in_causal().allows(q, k), same.allows(q, k))


def written_out(band: Band, q_len: int, k_len: int) -> torch.Tensor:
    distance = torch.arange(k_len) - torch.arange(k_len - q_len, k_len)[:, None]
    back, ahead = (k_len if bound is None else bound for bound in band)
    return (distance >= -back) & (distance <= ahead)


def banded(lots: random.Random, depth: int = 3) -> MaskRule:
    """A rule made of nothing but bands."""
    if depth and lots.random() < 0.5:
        return And(rules=tuple(banded(lots, depth - 1) for _ in range(lots.randint(1, 3))))
    return lots.choice([Full(), Causal(), Window(size=lots.randint(1, 25))])


@pytest.mark.parametrize("seed", range(50))
def test_what_is_made_of_bands_is_the_band_that_it_tells(seed: int) -> None:
    rule = banded(random.Random(seed))
    for q_len, k_len in ((20, 20), (1, 20), (7, 20)):
        assert rule.band is not None
        assert torch.equal(dense(rule, q_len, k_len), written_out(rule.band, q_len, k_len)), rule


def test_a_causal_window_sees_itself_and_what_its_size_leaves() -> None:
    assert (Window(size=256) & Causal()).band == Band(255, 0)
    assert (Causal() & Window(size=9) & Window(size=4)).band == Band(3, 0) and Window(size=4).band == Band(3, 3)


def test_no_kind_tells_a_band_that_it_is_not() -> None:
    discover()
    for rule in (rule for kind in MaskRule.kinds.values() for rule in kind.examples()):
        assert rule.band is None or torch.equal(dense(rule, 20, 20), written_out(rule.band, 20, 20)), rule


@pytest.mark.parametrize(
    "rule", [Segment(), Prefix(), BLOCK, Dilated(size=3, step=2), Window(size=2, block=3), NEAR | BLOCK], ids=str
)
def test_what_is_no_band_says_so_alone_and_joined(rule: MaskRule) -> None:
    assert rule.band is None and (rule & Causal()).band is None and (NEAR & rule).band is None


def test_a_rule_that_calls_itself_symmetric_is() -> None:
    discover()
    for rule in (rule for kind in MaskRule.kinds.values() for rule in kind.examples() if kind.symmetric):
        assert torch.equal(dense(rule, 20, 20), dense(rule, 20, 20).T), rule


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "alone"])
@pytest.mark.parametrize("kind", ["window", "block_local", "strided", "dilated", "global_tokens"])
def test_the_quick_count_of_a_symmetric_rule_is_exact(kind: str, causal: bool) -> None:
    for rule in kind_of(MaskRule, kind).examples():
        joined = And(rules=(rule, Causal()) if causal else (rule,))
        for q_len, k_len in ((20, 20), (1, 20), (7, 20)):
            assert joined.pairs(q_len, k_len) == int(dense(joined, q_len, k_len).sum())


def test_a_rule_is_recovered_from_its_text_and_no_two_rules_share_one() -> None:
    discover()
    rules = [rule for kind in MaskRule.kinds.values() for rule in kind.examples()]
    rules += [Window(size=5) & Causal(), Window(size=6) & Causal(), Window(size=5) | Causal()]
    assert all(rule_from(rule.text) == rule for rule in rules)
    assert len({rule.text for rule in rules}) == len(set(rules))
