"""Several sources in one: shares of the training text, held-out records once, and the same every time."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from anyformer.core import decode
from anyformer.data.checks.diagnosis import diagnose
from anyformer.data.preparation.contents import SPLITS
from anyformer.data.preparation.pipeline import DataSpec, look, prepare
from anyformer.data.record import SourceSpec
from anyformer.data.sources.jsonl import JSONLines
from anyformer.data.sources.mixture import MixtureSource
from anyformer.data.sources.named_source import relocated
from anyformer.data.sources.text import Text
from anyformer.data.tokenizers.byte import Byte
from anyformer.errors import DataError, SpecError
from anyformer.run import train


def rows(path: Path, word: str, count: int, **fields: str) -> JSONLines:
    records = ({"text": f"{word} text number {n:04}", **fields} for n in range(count))
    path.write_text("\n".join(json.dumps(record) for record in records))
    return JSONLines(path=str(path), **{name: name for name in fields})


def data_of(source: SourceSpec, valid: float = 0.2) -> DataSpec:
    return DataSpec(source=source, tokenizer=Byte(), valid=valid, context=64)


def counts(source: SourceSpec) -> dict[str, Counter[str]]:
    """Split -> text -> how often it is read in an epoch."""
    texts = {split: Counter[str]() for split in SPLITS}
    for record, split, _ in look(data_of(source)).with_joins():
        texts[split][record.text] += 1
    return texts


@pytest.mark.parametrize(("weights", "share"), [((2.0, 1.0), 2 / 3), ((0.7, 0.3), 0.7), ((1.0, 4.0), 0.2)])
def test_an_epoch_has_the_shares_of_the_weights(weights: tuple[float, float], share: float, tmp_path: Path) -> None:
    sources = rows(tmp_path / "a.jsonl", "one", 500), rows(tmp_path / "b.jsonl", "two", 900)
    train = counts(MixtureSource(sources=sources, weights=weights))["train"]
    ones = sum(count for text, count in train.items() if text.startswith("one"))
    assert ones / train.total() == pytest.approx(share, abs=0.03)
    every = counts(MixtureSource(sources=sources))
    assert train.keys() == every["train"].keys() and every["train"].total() == len(every["train"])


def test_held_out_records_are_read_once_and_never_in_training(tmp_path: Path) -> None:
    sources = rows(tmp_path / "a.jsonl", "one", 200), rows(tmp_path / "b.jsonl", "two", 900)
    splits = counts(MixtureSource(sources=sources, weights=(3.0, 1.0)))
    assert max(splits["train"].values()) > 10 and set(splits["valid"].values()) == {1}
    assert not splits["train"].keys() & splits["valid"].keys()
    alone = [counts(source)["valid"] for source in sources]
    assert splits["valid"] == alone[0] + alone[1]


def test_splits_that_a_source_names_are_kept_and_not_repeated(tmp_path: Path) -> None:
    sources = [rows(tmp_path / f"{split}.jsonl", split, 40, split=split) for split in ("train", "valid")]
    named = MixtureSource(sources=tuple(sources))
    large = rows(tmp_path / "large.jsonl", "other", 400, split="train")
    splits = counts(MixtureSource(sources=(named, large), weights=(1.0, 1.0)))
    assert set(splits["valid"].values()) == {1} and len(splits["valid"]) == 40
    assert {count for text, count in splits["train"].items() if text.startswith("train")} <= {9, 10, 11}
    assert MixtureSource(sources=(named, large)).warnings() == []
    (warning,) = MixtureSource(sources=(named, rows(tmp_path / "a.jsonl", "plain", 40))).warnings()
    assert warning.startswith("data.source.sources[1]: names no splits, but sources[0] does")


def test_repeated_pieces_of_a_text_are_joined_only_with_their_neighbours(tmp_path: Path) -> None:
    text = "".join(f"line {n:05} of the book\n" for n in range(1_000))
    (tmp_path / "book.txt").write_text(text)
    other = rows(tmp_path / "b.jsonl", "two", 2_250)
    source = MixtureSource(sources=(Text(path=str(tmp_path / "book.txt")), other), weights=(1.0, 1.0))
    joined = ""
    for record, _, goes_on in look(data_of(source)).with_joins():
        joined += record.text
        if not goes_on:
            assert joined in text or joined.startswith("two")
            joined = ""
    assert 1.9 < source.times()[0] < 2 and source.times()[1] == 1


def test_the_same_mixture_gives_the_same_records_and_shards(tmp_path: Path) -> None:
    source = MixtureSource(
        sources=(rows(tmp_path / "a.jsonl", "one", 30), rows(tmp_path / "b.jsonl", "two", 77)), weights=(1.0, 1.0)
    )
    assert list(source.records()) == list(source.records())
    assert decode(SourceSpec, source.to_dict()) == source
    files = [prepare(data_of(source), tmp_path / name).manifest.files for name in ("one", "two")]
    assert files[0] == files[1]
    before = source.fingerprint()
    assert replace(source, weights=(1.0, 2.0)).fingerprint() != before
    rows(tmp_path / "b.jsonl", "three", 77)
    assert source.fingerprint() != before


@pytest.mark.parametrize(
    ("weights", "fields", "message"),
    [
        ((1.0,), {}, "weights: 1 for 2 sources"),
        ((), {"label": "x"}, r"sources\[1\]: its records are texts with labels, those of sources\[0\] are texts"),
        ((1_000.0, 1.0), {}, r"weights\[0\]: to have its share, .* at most 100"),
    ],
)
def test_mistakes_are_named(weights: tuple[float, ...], fields: dict[str, str], message: str, tmp_path: Path) -> None:
    one, two = rows(tmp_path / "a.jsonl", "one", 30), rows(tmp_path / "b.jsonl", "two", 70, **fields)
    with pytest.raises(SpecError, match=message):
        list(MixtureSource(sources=(one, two), weights=weights).records())


def test_a_mixture_is_found_where_its_run_began(tmp_path: Path) -> None:
    rows(tmp_path / "a.jsonl", "one", 3)
    moved = relocated(data_of(MixtureSource(sources=(JSONLines(path="a.jsonl"),))), str(tmp_path))
    assert len(list(moved.source.records())) == 3
    with pytest.raises(DataError, match="no such file"):
        list(MixtureSource(sources=(JSONLines(path="a.jsonl"),)).records())


def test_a_recipe_trains_on_a_mixture_without_warnings_of_copies(tmp_path: Path) -> None:
    for name, count in (("a", 40), ("b", 100)):
        rows(tmp_path / f"{name}.jsonl", name * 30, count)
    source = f"""{{kind = "mixture", weights = [1, 1], sources = [
        {{kind = "jsonl", path = "{tmp_path}/a.jsonl"}}, {{kind = "jsonl", path = "{tmp_path}/b.jsonl"}}]}}"""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'[model]\npreset = "small"\ndim = 32\nstack = {{ depth = 1 }}\n[data]\nsource = {source}\n'
        'tokenizer = { kind = "byte" }\ncontext = 64\n[train]\nsteps = 2\nbatch_tokens = 256\n[sample]\ntokens = 1\n'
    )
    run = train(str(recipe), out=tmp_path / "run", cache=tmp_path / "cache")
    assert run.evaluate(limit=12)["loss"].texts > 3
    assert run.recipe.data is not None
    assert "duplicates" not in [finding.check for finding in diagnose(run.recipe.data).findings]
