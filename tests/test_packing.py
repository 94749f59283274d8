"""Packed parts: a round trip gives the same files, and a missing or damaged part is refused by name."""

import json
from pathlib import Path

import pytest
from tools.corpus.__main__ import main
from tools.corpus.pack import join, pack
from tools.corpus.packages import CorpusError

FILES = {"a.bin": bytes(range(256)) * 10, "empty": b"", "sub/b.txt": b"text" * 300, "z": b"last"}


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_bytes(content)
    pack(tmp_path / "data", tmp_path / "out", limit=1000)
    return tmp_path / "out"


def test_a_round_trip_gives_the_same_files(packed: Path, tmp_path: Path) -> None:
    assert join(packed, tmp_path / "again") == len(FILES)
    assert {name: (tmp_path / "again" / name).read_bytes() for name in FILES} == FILES


def test_parts_have_at_most_the_given_size(packed: Path) -> None:
    sizes = [path.stat().st_size for path in sorted(packed.glob("part-*"))]
    assert sizes == [1000, 1000, 1000, sum(map(len, FILES.values())) - 3000]
    assert sorted(path.name for path in packed.iterdir()) == ["index.json", *(f"part-00{i}" for i in range(4))]


def test_a_missing_part_is_named(packed: Path, tmp_path: Path) -> None:
    (packed / "part-002").unlink()
    with pytest.raises(CorpusError, match="Part part-002 is missing"):
        join(packed, tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    ("damage", "message"),
    [(b"x" * 1000, "its SHA-256 differs from the index"), (b"x", "it has 1 bytes instead of 1,000")],
)
def test_a_damaged_part_is_named(packed: Path, tmp_path: Path, damage: bytes, message: str) -> None:
    (packed / "part-001").write_bytes(damage)
    with pytest.raises(CorpusError, match=f"Part part-001 is damaged: {message}"):
        join(packed, tmp_path / "again")


def test_an_index_that_is_missing_or_damaged_or_leads_outside_is_refused(packed: Path, tmp_path: Path) -> None:
    index = json.loads((packed / "index.json").read_text())
    index["files"][0]["name"] = "../../outside"
    (packed / "index.json").write_text(json.dumps(index))
    with pytest.raises(CorpusError, match="lies outside"):
        join(packed, tmp_path / "again")
    (packed / "index.json").write_text("{}")
    with pytest.raises(CorpusError, match=r"index\.json is damaged"):
        join(packed, tmp_path / "again")
    (packed / "index.json").unlink()
    with pytest.raises(CorpusError, match=r"index\.json is missing"):
        join(packed, tmp_path / "again")


def test_the_commands_pack_and_join(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", str(tmp_path / "data"), str(tmp_path / "new"), "--limit", "2000"]) == 0
    assert main(["join", str(tmp_path / "new"), str(tmp_path / "again")]) == 0
    assert "2 parts" in capsys.readouterr().out
    (tmp_path / "new" / "part-000").unlink()
    assert main(["join", str(tmp_path / "new"), str(tmp_path / "again")]) == 1
    assert capsys.readouterr().err.startswith("error: Part part-000 is missing")


def test_only_an_empty_folder_receives_parts_and_only_files_are_packed(packed: Path, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="is not empty"):
        pack(tmp_path / "data", packed)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(CorpusError, match="has no files"):
        pack(tmp_path / "nothing", tmp_path / "new")
