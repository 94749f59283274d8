"""A study that is stopped by the clock, or carried to another machine, ends with the same table."""

import json
import shutil
import tarfile
from pathlib import Path

import pytest
from tests.study.small import measured, tiny
from tests.training.small import text

from anyformer.cli.main import main
from anyformer.errors import OUT_OF_TIME, DataError, Interrupted, SpecError
from anyformer.reporting.study_report import study_html
from anyformer.run import Run
from anyformer.study import Results, compare
from anyformer.study.study_listener import Listener
from anyformer.study.study_pack import is_pack, unpack, write_pack


class Packing(Listener):
    """Packs a study when `compare` ends."""

    def __init__(self, file: Path):
        self.file = file

    def ended(self, path: Path) -> None:
        write_pack(path, self.file)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def calm(home: Path) -> Results:
    """A study of one seed that was not disturbed, packed at its end."""
    return tiny(home, "study.seeds=1", name="calm", listener=Packing(home / "calm.tar.gz"))


@pytest.mark.parametrize("minutes", [0, pytest.param(0.01, marks=pytest.mark.slow)], ids=["none", "little"])
def test_a_study_without_time_stops_with_a_code_of_its_own_and_goes_on(
    home: Path, calm: Results, minutes: float
) -> None:
    """Before a worker process is started; and while one starts, which takes longer than half a second."""
    name = f"short-{minutes}"
    with pytest.raises(Interrupted, match=r"the time is up: all is saved\. Go on with: anyformer compare") as caught:
        tiny(home, "study.seeds=1", f"study.minutes={minutes}", name=name)
    assert caught.value.exit_code == OUT_OF_TIME and (home / name / "study.toml").is_file()
    assert measured(tiny(home, "study.seeds=1", name=name)) == measured(calm)


def test_a_pack_holds_metrics_and_no_weights(home: Path, calm: Results) -> None:
    shrunk = Path(shutil.copytree(calm.path / "lstm" / "seed-0", calm.path / "lstm" / "seed-0-small"))
    write_pack(calm.path, home / "calm.tar.gz")
    shutil.rmtree(shrunk)
    with tarfile.open(home / "calm.tar.gz") as archive:
        names = archive.getnames()
    assert "calm/lstm/seed-0/metrics.jsonl" in names and "calm/study.toml" in names
    assert not [name for name in names if "safetensors" in name or "checkpoints" in name or ".lock" in name]
    assert not [name for name in names if "seed-0-small" in name]
    assert is_pack(home / "calm.tar.gz") and not is_pack(Path(text(home)))


def test_what_all_runs_share_is_packed_once_and_unpacked_for_each(home: Path, calm: Results) -> None:
    with tarfile.open(home / "calm.tar.gz") as archive:
        whole = [member.name for member in archive.getmembers() if member.isfile() and "tokenizer" in member.name]
    there = unpack(home / "calm.tar.gz", home / "unpacked", home)
    places = [path.relative_to(there) for path in there.rglob("tokenizer.json")]
    assert len(whole) == 1 and len(places) == len(calm.arms)
    for place in places:
        assert (there / place).read_bytes() == (home / "calm" / place).read_bytes()
        assert (there / place).stat().st_nlink == 1


def test_runs_from_a_pack_are_complete_and_say_that_they_have_no_weights(
    home: Path, calm: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    run = unpack(home / "calm.tar.gz", home / "read", home) / "lstm" / "seed-0"
    assert Run(run).complete and main(["runs", str(home / "read"), "--json"]) == 0
    assert [line["state"] for line in json.loads(capsys.readouterr().out)] == ["complete"] * 2
    for words in (["generate", str(run), "the"], ["train", str(run), "--resume"], ["evaluate", str(run)]):
        assert main(words) == 2
        complaint = capsys.readouterr().err
        assert "is complete, but its weights were left out by --pack. Train it again: anyformer train " in complaint
    assert not (run / "checkpoints").exists()


def test_another_machine_goes_on_from_a_pack_without_repeating_runs(home: Path, calm: Results) -> None:
    results = compare(home / "calm.tar.gz", out=home / "there", seeds=2, cache=home / "cache")
    first, second = results.arms[0].runs
    assert not Run(first.folder).checkpoints and Run(second.folder).checkpoints
    assert first.test_loss == calm.arms[0].runs[0].test_loss
    assert [run.state for arm in results.arms for run in arm.runs] == ["complete"] * 4
    assert "A look" in study_html(results)


def test_runs_that_are_there_already_stay_when_a_pack_is_opened(home: Path, calm: Results) -> None:
    metrics = home / "calm" / "lstm" / "seed-0" / "metrics.jsonl"
    before = metrics.stat().st_mtime_ns
    assert unpack(home / "calm.tar.gz", home / "calm", home) == home / "calm"
    assert metrics.stat().st_mtime_ns == before and Run(metrics.parent).checkpoints


def test_a_damaged_pack_and_a_wrong_name_are_refused(home: Path, calm: Results) -> None:
    damaged = home / "damaged.tar.gz"
    damaged.write_bytes((home / "calm.tar.gz").read_bytes()[:2000])
    with pytest.raises(DataError, match="cannot be read as a packed study"):
        unpack(damaged, home / "nowhere", home)
    with pytest.raises(SpecError, match=r"must end in \.tar\.gz"):
        write_pack(home / "calm", home / "study.zip")
