"""Specs: values that are compared, changed, stored and read back strictly."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Any

import pytest

from anyformer.core import Amount, Chance, Count, ModelSpec, PartSpec, PoolSpec, Positive, Spec, decode, kind_of
from anyformer.core.fields import did_you_mean
from anyformer.data.record import SourceSpec
from anyformer.data.sources.text import Text
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.heads.tied import Tied
from anyformer.parts.masks.window import Window
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.positions.rope import Rope


def decoder() -> Decoder:
    look = Branch(part=Attention(heads=4, kv_heads=2, mask=Window(size=3), position=Rope()))
    block = Block(branches=(look, Branch(part=MLP(hidden=64))))
    return Decoder(vocab=97, dim=32, stack=Stack(blocks={"layer": block}, depth=2))


def problems(data: Any) -> list[str]:
    with pytest.raises(SpecError) as caught:
        decode(ModelSpec, data)
    return [str(problem) for problem in caught.value.problems]


def changed(**values: Any) -> dict[str, Any]:
    return decoder().to_dict() | values


def test_a_spec_survives_plain_data_and_json() -> None:
    spec = decoder()
    assert decode(ModelSpec, spec.to_dict()) == spec
    assert decode(ModelSpec, json.loads(json.dumps(spec.to_dict()))) == spec


def test_a_spec_is_passed_through_where_data_is_expected() -> None:
    assert decode(PartSpec, MLP(hidden=3)) == MLP(hidden=3)


def test_with_changes_one_key_and_nothing_else() -> None:
    spec = decoder()
    other = spec.with_("stack.blocks.layer.branches.0.part.heads", 2)
    assert other.diff(spec) == {"stack.blocks.layer.branches.0.part.heads": (2, 4)}
    assert spec == decoder()


def test_with_takes_a_spec_as_a_value() -> None:
    other = decoder().with_("stack.blocks.layer.branches[1].part", Attention(heads=1))
    assert other.stack.blocks["layer"].branches[1].part == Attention(heads=1)


def test_with_another_kind_forgets_the_old_one() -> None:
    other = decoder().with_("stack.blocks.layer.branches.1.part.kind", "glu")
    assert other.stack.blocks["layer"].branches[1].part.to_dict()["kind"] == "glu"
    assert "hidden" not in other.stack.blocks["layer"].branches[1].part.to_dict()


def test_with_refuses_what_decode_refuses() -> None:
    with pytest.raises(SpecError, match=r"^dim: must be at least 1, got 0\.$"):
        decoder().with_("dim", 0)


def test_diff_says_what_only_one_side_has() -> None:
    plain, masked = Attention(), Attention(mask=Window(size=3))
    assert masked.diff(plain) == {"mask.kind": ("window", None), "mask.size": (3, None), "mask.block": (1, None)}
    assert plain.diff(plain) == {}


@dataclass(frozen=True, kw_only=True)
class Rates(Spec):
    rate: float = 0.0
    share: float | None = None
    rates: float | tuple[float, ...] | dict[str, float] = 0.0
    either: int | float = 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Rates(rate=0), Rates()),
        (Rates(rate=-0.0), Rates()),
        (Rates(share=0), Rates(share=0.0)),
        (Rates(rates=(0, 0.5)), Rates(rates=(0.0, 0.5))),
        (Rates(rates={"a": 1}), Rates(rates={"a": 1.0})),
        (Rates(rates=1), Rates(rates=1.0)),
        (MLP(dropout=0), MLP(dropout=0.0)),
    ],
)
def test_whole_numbers_are_floats_where_a_field_declares_them(one: Spec, other: Spec) -> None:
    assert one == other and one.digest() == other.digest()
    assert isinstance(Rates(rate=2).rate, float) and isinstance(Rates(either=2).either, int)


def test_equal_specs_have_equal_digests_and_others_have_not() -> None:
    assert decoder().digest() == decoder().digest()
    assert decoder().digest() != replace(decoder(), dim=64).digest()


def test_walk_finds_every_spec_by_a_path_that_with_understands() -> None:
    spec = decoder()
    found = dict(spec.walk())
    assert found[""] is spec
    assert found["stack.blocks.layer.branches.0.part.mask"] == Window(size=3)
    for path, inner in list(found.items())[1:]:
        assert spec.with_(path, inner) == spec


def test_a_kind_is_refused_twice() -> None:
    with pytest.raises(SpecError, match="'mlp' is taken by MLP"):
        type("Again", (PartSpec,), {}, kind="mlp")
    assert kind_of(PartSpec, "mlp") is MLP


def test_a_kind_of_a_module_that_is_not_imported_yet_is_taken_too() -> None:
    code = """
from anyformer.core import PoolSpec
from anyformer.data.record import SourceSpec
from anyformer.data.sources.text import Text
from anyformer.errors import SpecError
try:
    class Mine(PoolSpec, kind="mean"):
        def build(self, site): return None
except SpecError as error:
    print(error)
from anyformer.core import kind_of
print(kind_of(PoolSpec, "mean").__module__)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    refusal, module = result.stdout.splitlines()
    assert refusal == "Mine (__main__): the kind 'mean' is taken by Mean (anyformer). Choose another kind for Mine."
    assert module.startswith("anyformer.parts.pools")


def test_of_two_classes_of_a_kind_the_one_outside_the_package_is_to_be_renamed() -> None:
    """A built-in kind that the stored catalogue lacks is found after a user's class has taken its name."""

    class First(PoolSpec, kind="in_both"):
        def build(self, site: Any) -> Any:
            return None

    try:
        with pytest.raises(SpecError) as caught:
            type(
                "Second", (PoolSpec,), {"__module__": "anyformer.parts.pools.new", "build": First.build}, kind="in_both"
            )
    finally:
        PoolSpec.kinds.pop("in_both")
    text = f"First ({__file__}): the kind 'in_both' is taken by Second (anyformer). Choose another kind for First."
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("dim", True, "expected a whole number, got True"),
        ("dim", 2.5, "expected a whole number, got 2.5"),
        ("dim", 2.0, "expected a whole number, got 2.0"),
        ("dim", "32", "expected a whole number, got '32'"),
        ("dropout", "0.1", "expected a finite number"),
        ("dropout", True, "expected a finite number"),
        ("dropout", float("nan"), "expected a finite number"),
        ("stack", "deep", "expected a table, got 'deep'"),
        ("stack", [], "expected a table"),
        ("head", "tied", "expected a table, got 'tied'. Write head.kind=tied"),
        ("head", "teid", "no HeadSpec is called 'teid'. Did you mean 'tied'?"),
        ("head", Tied, "Write Tied(...)."),
        ("head", {}, "say which one"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(key: str, value: Any, complaint: str) -> None:
    (problem,) = problems(changed(**{key: value}))
    assert problem.startswith(f"{key}: ")
    assert complaint in problem


@pytest.mark.parametrize("kind", [3, None, {"x": 1}])
def test_a_kind_that_is_no_string_is_named(kind: Any) -> None:
    (problem,) = problems(changed(head={"kind": kind}))
    assert problem.startswith("head.kind: expected a string, got ")


@pytest.mark.parametrize(
    ("part", "complaint"),
    [
        ({"kind": "attention", "bias": "false"}, "bias: expected true or false, got 'false'"),
        ({"kind": "attention", "bias": 0}, "bias: expected true or false, got 0"),
        ({"kind": "attention", "mask": {"kind": "and", "rules": "full"}}, "mask.rules: expected a list, got 'full'"),
        ({"kind": "mlp", "activation": "gellu"}, "activation: 'gellu' is not a choice. Did you mean 'gelu'?"),
        ({"kind": "mpl"}, "no PartSpec is called 'mpl'. Did you mean 'mlp'?"),
        ({"kind": "mlp", "hiden": 3}, "hiden: MLP has no such key. Did you mean 'hidden'?"),
        ({"kind": "attention", "heads": 4, "kv_heads": 3}, "heads=4 must be a multiple of kv_heads=3. Use 1, 2, 4."),
    ],
)
def test_a_part_that_cannot_be_is_named_with_its_path(part: dict[str, Any], complaint: str) -> None:
    stack = {"depth": 1, "blocks": {"layer": {"branches": [{"part": part}]}}}
    (problem,) = problems(changed(stack=stack))
    assert problem.startswith("stack.blocks.layer.branches[0].part")
    assert complaint in problem


def test_a_key_of_another_kind_is_refused_with_that_kind() -> None:
    (problem,) = problems(changed(head={"kind": "tied", "rest": 3}))
    assert "head.rest: Tied has no such key." in problem
    assert problem.endswith("It is a key of adaptive_softmax: write head.kind=adaptive_softmax as well.")


def test_a_key_of_many_kinds_is_refused_with_some_of_them() -> None:
    with pytest.raises(SpecError, match=r"It is a key of (\w+, ){5}\.\.\.: write part\.kind=KIND as well\.$"):
        decode(PartSpec, {"kind": "mlp", "heads": 2}, "part")


def test_all_problems_are_told_at_once() -> None:
    stack = {"depth": 2.5, "blocks": {"layer": {"branches": [{"part": {"kind": "mlp", "hidden": -1}}]}}}
    found = problems({"kind": "decoder", "vocab": "many", "stack": stack, "droput": 0.1})
    assert {problem.split(":")[0] for problem in found} == {
        "vocab",
        "dim",
        "droput",
        "stack.depth",
        "stack.blocks.layer.branches[0].part.hidden",
    }


@dataclass(frozen=True, kw_only=True)
class Ranged(Spec):
    """For the test below."""

    count: Count = 1
    amount: Amount = 0
    positive: Positive = 0.5
    chance: Chance | None = None


@pytest.mark.parametrize(
    ("name", "good", "bad"), [("count", 1, 0), ("amount", 0, -1), ("positive", 1e-9, 0.0), ("chance", 0.999, 1.0)]
)
def test_a_range_holds_in_python_as_in_data(name: str, good: float, bad: float) -> None:
    assert getattr(Ranged(**{name: good}), name) == good  # type: ignore[arg-type]
    for make in (lambda value: Ranged(**{name: value}), lambda value: decode(Ranged, {name: value})):
        with pytest.raises(SpecError, match=rf"^{name}: must be"):
            make(bad)


def test_a_number_for_a_fraction_may_be_whole() -> None:
    assert decode(Ranged, {"positive": 2}).positive == 2.0
    assert isinstance(decode(Ranged, {"positive": 2}).positive, float)


@dataclass(frozen=True, kw_only=True)
class Typed(Spec):
    heads: Count = 4
    dropout: Chance = 0.0


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"heads": "4"}, "heads: expected a whole number, got '4'."),
        ({"heads": True}, "heads: expected a whole number, got True."),
        ({"heads": 4.0}, "heads: expected a whole number, got 4.0."),
        ({"heads": 4, "dropout": "0.1"}, "dropout: expected a number, got '0.1'."),
        ({"dropout": float("nan")}, "dropout: must be a finite number, got nan."),
    ],
)
def test_a_value_of_another_type_is_refused_when_it_is_built_in_python(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SpecError, match=re.escape(complaint)):
        Typed(**values)


@pytest.mark.parametrize("values", [{"dropout": 1.0}, {"dropout": -0.1}, {"heads": 0}])
def test_a_share_is_below_one_and_a_count_is_not_zero(values: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="must be "):
        Typed(**values)


def test_a_kind_that_lacks_a_method_of_its_family_is_refused_where_it_is_defined() -> None:
    with pytest.raises(SpecError, match=r"^Unfinished: every PoolSpec defines build, and this class does not\."):

        class Unfinished(PoolSpec, kind="unfinished"):
            pass

    assert "unfinished" not in PoolSpec.kinds


def test_a_family_with_fields_is_known_before_its_first_kind_is_imported() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Drink(Spec):
        size: int = 1

        def pour(self) -> str:
            raise NotImplementedError

    with pytest.raises(SpecError, match="no Drink is called 'tea'"):
        decode(Drink, {"kind": "tea"})

    @dataclass(frozen=True, kw_only=True)
    class Tea(Drink, kind="tea"):
        def pour(self) -> str:
            return "tea"

    assert decode(Drink, {"kind": "tea", "size": 2}) == Tea(size=2)


def test_a_file_name_that_is_not_utf8_is_refused_where_it_is_set() -> None:
    name = os.fsdecode(b"caf\xe9.txt")
    with pytest.raises(SpecError, match=r"path: 'caf\\udce9\.txt' is not valid UTF-8.* Rename it"):
        Text(path=name)
    with pytest.raises(SpecError, match="path: "):
        decode(SourceSpec, {"kind": "text", "path": name})


def test_a_long_list_of_names_does_not_hide_the_similar_one() -> None:
    many = [f"preset-{number}" for number in range(100)]
    assert did_you_mean("cnm", ["cnn", "lstm"]) == " Did you mean 'cnn'? Known: cnn, lstm."
    assert did_you_mean("cnm", ["cnn", *many]) == " Did you mean 'cnn'?"
    assert did_you_mean("zzz", many).startswith(" Known: preset-0, preset-1, ")
