"""`anyformer parts`: the catalogue holds every kind, and every kind explains itself."""

import json
from typing import Any, get_args, get_type_hints

import pytest

from anyformer.cli.main import main
from anyformer.core import MaskRule, ModelSpec, NormSpec, PartSpec, Work
from anyformer.core.discovery import discover
from anyformer.core.schema import describe
from anyformer.core.spec import Spec, kind_of
from anyformer.reporting import installed_kinds
from anyformer.reporting.catalogue import PERSPECTIVES, CatalogueEntry

discover()
Capture = pytest.CaptureFixture[str]
KINDS = sorted({kind for family in Spec.__subclasses__() for kind in family.kinds})


def in_turn(first: int) -> list[Any]:
    """All kinds: every second one in the fast suite, from the given one on, the others in the slow suite."""
    return [
        pytest.param(kind, marks=() if number % 2 == first else pytest.mark.slow) for number, kind in enumerate(KINDS)
    ]


def options_of(kind: str) -> set[str]:
    families = [family for family in Spec.__subclasses__() if kind in family.kinds]
    return {option.name for family in families for option in describe(family.kinds[kind])}


def answer(capsys: Capture, *arguments: str) -> Any:
    assert main(["parts", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def shown(capsys: Capture, *arguments: str) -> str:
    assert main(["parts", *arguments]) == 0
    return capsys.readouterr().out


def test_every_kind_of_every_family_is_listed(capsys: Capture) -> None:
    listed = answer(capsys)
    known = {kind for family in Spec.__subclasses__() for kind in family.kinds}  # other tests may have added some
    assert {entry["kind"] for entry in listed} == known >= set(KINDS)
    assert len(listed) == sum(len(family.kinds) for family in Spec.__subclasses__())
    for entry in listed:
        assert entry.keys() == {"family", "kind", "summary", "options", "perspective", "limits"}
        assert entry["summary"]


def test_our_own_kinds_stand_under_their_folder(capsys: Capture) -> None:
    families = {(entry["kind"], entry["family"]) for entry in answer(capsys)}
    assert {("attention", "mixers"), ("mlp", "channels"), ("cross", "combine")} <= families
    assert {("causal", "masks"), ("window", "masks"), ("decoder", "models")} <= families


def test_options_are_those_of_the_spec(capsys: Capture) -> None:
    (entry,) = answer(capsys, "mlp")
    assert [option["name"] for option in entry["options"]] == [
        option.name for option in describe(kind_of(PartSpec, "mlp"))
    ]
    assert entry["options"][0]["type"] == "integer >= 1"
    assert all(option["help"] for option in entry["options"])


@pytest.mark.row("XF-01", clause="the command line lists the architectures by tag")
def test_every_architecture_has_a_perspective_and_the_list_can_be_read_by_it(capsys: Capture) -> None:
    listed, words = answer(capsys), tuple(PERSPECTIVES)
    assert {entry["perspective"] for entry in listed} <= {*words, None}
    by_tag = {word: {entry["kind"] for entry in answer(capsys, "--perspective", word)} for word in words}
    assert by_tag == {word: {entry["kind"] for entry in listed if entry["perspective"] == word} for word in words}
    assert "window" in by_tag["efficiency"]
    assert "attention" in by_tag["vanilla"]


@pytest.mark.row("XF-01", clause="tags are three perspectives: efficiency, generalisation, adaptation")
def test_a_kind_may_declare_one_of_three_perspectives_and_each_has_kinds(capsys: Capture) -> None:
    (declared, _) = get_args(get_args(get_type_hints(Spec, include_extras=True)["perspective"])[0])
    assert set(get_args(declared)) == {"efficiency", "generalisation", "adaptation"} == set(PERSPECTIVES) - {"vanilla"}
    listed = {word: {entry["kind"] for entry in answer(capsys, "--perspective", word)} for word in get_args(declared)}
    assert {"window", "linformer"} <= listed["efficiency"]
    assert {"masked_words", "span_corruption"} <= listed["generalisation"]
    assert {"prefix", "permutation"} <= listed["adaptation"]


@pytest.mark.row("XF-01", clause="every registered architecture has exactly one tag")
def test_every_part_and_model_has_exactly_one_tag(capsys: Capture) -> None:
    architectures = [entry for entry in installed_kinds.installed_entries() if ours(entry)]
    assert len(architectures) > 100
    listed = [
        (entry["family"], entry["kind"]) for word in PERSPECTIVES for entry in answer(capsys, "--perspective", word)
    ]
    assert {(entry.slot, entry.kind) for entry in architectures} <= set(listed)
    assert len(listed) == len(set(listed))


def ours(entry: CatalogueEntry) -> bool:
    """True for parts and models of the package itself: other tests may have added some."""
    return installed_kinds.class_of(entry).__module__.startswith(("anyformer.parts.", "anyformer.models."))


@pytest.mark.row("XF-01", clause="the command line lists the architectures by tag")
def test_grouping_by_perspective_puts_each_kind_under_its_own(capsys: Capture) -> None:
    text = shown(capsys, "--by", "perspective")
    efficiency = text.partition("\nefficiency")[2]
    assert "  window " in efficiency
    assert "  attention " in text.partition("\nefficiency")[0]


def test_a_kind_of_another_package_has_the_perspective_that_it_declares(capsys: Capture) -> None:
    class Mine(PartSpec):
        """A part of a user's own."""

    class Faster(PartSpec):
        """A part of a user's own that declares one."""

        perspective = "efficiency"

    assert installed_kinds.entry_of(Mine, alone=False).to_dict()["perspective"] is None
    assert installed_kinds.entry_of(Faster, alone=False).to_dict()["perspective"] == "efficiency"
    assert "Transformer" not in shown(capsys, "muon")


@pytest.mark.parametrize("name", ["masks", "mask", "MaskRule"])
def test_a_family_may_be_called_by_any_of_its_names(name: str, capsys: Capture) -> None:
    assert {entry["kind"] for entry in answer(capsys, "--family", name)} == set(MaskRule.kinds)


def test_a_folder_is_less_than_a_family(capsys: Capture) -> None:
    mixers = {entry["kind"] for entry in answer(capsys, "--family", "mixers")}
    assert "attention" in mixers
    assert mixers < set(PartSpec.kinds)
    assert {entry["kind"] for entry in answer(capsys, "--family", "part")} == set(PartSpec.kinds)


@pytest.mark.parametrize("kind", in_turn(0))
def test_every_kind_explains_itself(kind: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        installed_kinds, "_WORK", Work(batch=1, length=16)
    )  # what steps through 1024 tokens takes seconds
    text = shown(capsys, kind)
    assert text.startswith(kind)
    assert f'kind = "{kind}"' in text or kind in ModelSpec.kinds
    assert all(name in text for name in options_of(kind))


@pytest.mark.parametrize("kind", in_turn(1))
def test_every_kind_is_described_for_programs(kind: str, capsys: Capture) -> None:
    entries = answer(capsys, kind)
    assert entries and all(entry["kind"] == kind and entry["summary"] for entry in entries)
    assert options_of(kind) == {option["name"] for entry in entries for option in entry["options"]}


def test_a_part_shows_its_equation_options_limits_and_cost(capsys: Capture) -> None:
    text = shown(capsys, "attention", "--family", "mixers")
    assert "softmax" in text
    assert "arXiv 1706.03762" in text
    assert "integer >= 1" in text
    assert "cost at dim 512, batch 1, length 1024" in text
    assert "1,048,576 (1.05 M)" in text
    assert "the table ends at max_len" in shown(capsys, "learned")


def test_a_mask_shows_its_picture(capsys: Capture) -> None:
    text = shown(capsys, "causal")
    assert "# . . ." in text
    assert "# # . ." in text


def test_a_shape_of_model_names_its_presets(capsys: Capture) -> None:
    text = shown(capsys, "decoder")
    assert "small" in text
    assert "preset = " in text


def test_quiet_prints_the_names_alone(capsys: Capture) -> None:
    assert sorted(shown(capsys, "--family", "norms", "--quiet").split()) == sorted(NormSpec.kinds)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["atention"], "no part is called 'atention'. Did you mean attention"),
        (["late_words"], "For a kind of your own: anyformer --import FILE parts late_words"),
        (["--family", "norm_layers"], "no family is called"),
        (["--perspective", "speed"], "Known: adaptation, efficiency, generalisation, vanilla."),
        (["mlp", "--family", "masks"], "no part is called 'mlp'"),
    ],
)
def test_a_name_that_nobody_has_gets_the_nearest(arguments: list[str], complaint: str, capsys: Capture) -> None:
    assert main(["parts", *arguments]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_list_fits_the_terminal(columns: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert max(map(len, shown(capsys).splitlines())) <= int(columns)
