"""Dotted keys: the same rules for overrides, TOML layers and `with_`."""

import copy
import random
from typing import Any

import pytest

from anyformer.core.fields import leaves
from anyformer.core.plain_data import assign, merge, parse_override, split
from anyformer.errors import SpecError

TREE = {
    "dim": 8,
    "stack": {"depth": 2, "branches": [{"part": {"kind": "mlp", "hidden": 4}}, {"part": {"kind": "glu"}}]},
}


def tree() -> dict[str, Any]:
    return copy.deepcopy(TREE)


@pytest.mark.parametrize("path", ["stack.branches.0.part.hidden", "stack.branches[0].part.hidden"])
def test_dots_and_brackets_reach_into_a_list(path: str) -> None:
    data = tree()
    assign(data, path, 16)
    assert data["stack"]["branches"][0]["part"] == {"kind": "mlp", "hidden": 16}
    assert split(path) == ["stack", "branches", "0", "part", "hidden"]


def test_another_kind_clears_its_table_and_the_same_kind_does_not() -> None:
    data = tree()
    assign(data, "stack.branches.0.part.kind", "mlp")
    assert data == TREE
    assign(data, "stack.branches.0.part.kind", "glu")
    assert data["stack"]["branches"][0]["part"] == {"kind": "glu"}


def test_a_kind_given_to_a_table_that_had_none_keeps_its_values() -> None:
    data: dict[str, Any] = {"encoder": {"dim": 8}}
    assign(data, "encoder.kind", "encoder")
    assert data == {"encoder": {"dim": 8, "kind": "encoder"}}
    assert merge({"dim": 8}, {"kind": "encoder"}) == {"dim": 8, "kind": "encoder"}


def test_tables_on_the_way_are_made() -> None:
    data = tree()
    assign(data, "head.pool.kind", "mean")
    assert data["head"] == {"pool": {"kind": "mean"}}


@pytest.mark.parametrize("path", ["stack.branches.2.part.kind", "stack.branches.-1", "stack.branches.x.part"])
def test_a_place_that_a_list_does_not_have_is_refused(path: str) -> None:
    with pytest.raises(SpecError, match=r"stack\.branches.*a list of 2; use a number from 0 to 1"):
        assign(tree(), path, 1)


@pytest.mark.parametrize("path", ["dim.x", "dim.x.y", ""])
def test_a_plain_value_has_no_keys(path: str) -> None:
    with pytest.raises(SpecError):
        assign(tree(), path, 1)


def test_a_table_of_numbers_merges_into_a_list() -> None:
    merged = merge(TREE, {"stack": {"branches": {"1": {"part": {"activation": "silu"}}}}})
    assert merged["stack"]["branches"][0] == TREE["stack"]["branches"][0]
    assert merged["stack"]["branches"][1] == {"part": {"kind": "glu", "activation": "silu"}}


def test_a_number_beyond_the_list_names_the_whole_key() -> None:
    with pytest.raises(SpecError, match=r"^stack\.branches\.7: this is a list of 2"):
        merge(TREE, {"stack": {"branches": {"7": {"part": {}}}}})


def test_a_merged_kind_replaces_its_table_and_a_list_replaces_a_list() -> None:
    merged = merge(TREE, {"stack": {"branches": {"0": {"part": {"kind": "attention", "heads": 2}}}}})
    assert merged["stack"]["branches"][0]["part"] == {"kind": "attention", "heads": 2}
    assert merge(TREE, {"stack": {"branches": []}})["stack"] == {"depth": 2, "branches": []}


def test_merging_changes_neither_side() -> None:
    base, over = tree(), {"stack": {"branches": {"0": {"part": {"hidden": 1}}}}}
    merge(base, over)
    assert base == TREE
    assert over == {"stack": {"branches": {"0": {"part": {"hidden": 1}}}}}


def test_merging_random_tables_keeps_every_value_of_the_upper_one() -> None:
    draw = random.Random(0)

    def table(depth: int) -> dict[str, Any]:
        keys = draw.sample("abcde", draw.randint(1, 4))
        return {key: table(depth - 1) if depth and draw.random() < 0.5 else draw.randint(0, 9) for key in keys}

    for _ in range(200):
        base, over = table(3), table(3)
        merged = dict(leaves(merge(base, over)))
        assert dict(leaves(over)).items() <= merged.items()
        assert merged.keys() <= dict(leaves(base)).keys() | dict(leaves(over)).keys()
        assert merge(base, base) == base
        assert merge({}, over) == over


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model.dim=256", ("model.dim", 256)),
        ("a = 1e-3", ("a", 0.001)),
        ("a=true", ("a", True)),
        ("a=[1, 2]", ("a", [1, 2])),
        ('a={ kind = "mlp" }', ("a", {"kind": "mlp"})),
        ("a=gelu", ("a", "gelu")),
        ('a="256"', ("a", "256")),
        ("a=b=c", ("a", "b=c")),
        ("a=2024-01-01", ("a", "2024-01-01")),
        ("a=1\nb = 2", ("a", "1\nb = 2")),
        ("a=[1, 2", ("a", "[1, 2")),
        ("a=", ("a", "")),
        ("a=null", ("a", None)),
        ('a="null"', ("a", "null")),
    ],
)
def test_an_override_is_toml_or_else_a_word(text: str, expected: tuple[str, Any]) -> None:
    assert parse_override(text) == expected


@pytest.mark.parametrize("text", ["model.dim", "", "=3", ".=3"])
def test_what_sets_nothing_is_no_override(text: str) -> None:
    with pytest.raises(SpecError, match="Write key=value"):
        parse_override(text)


def test_the_first_key_that_reaches_into_a_number_is_named() -> None:
    with pytest.raises(SpecError, match=r"^dim\.a: there is no table here to reach into"):
        assign(tree(), "dim.a.b.c", 1)
