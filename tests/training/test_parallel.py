"""Two processes give what one gives, whether each has the model or a share of it, and go on where the other stopped."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from tests.objectives.small import WORDS, built, gradients, model, noise
from tests.objectives.test_mixture import BY_TASK, raw
from tests.training.ranks import CALM, HALF, STEPS, cut_off, together
from tests.training.small import TINY, facts, text, tiny

from anyformer.disk import step_name
from anyformer.errors import AnyformerError, CheckpointError, Interrupted, SpecError
from anyformer.models import Encoder
from anyformer.run import Run
from anyformer.training.distributed import OtherRankFailed, World, refuse_cut, wrapped
from anyformer.training.loop.loss_module import LossModule
from anyformer.training.runs import checkpoint

FSDP = "train.parallel=fsdp"
ELECTRA = (
    "model.preset=small-encoder", "model.dim=16", "model.stack.blocks.layer.branches.0.part.heads=2",
    "model.stack.blocks.layer.branches.0.dropout=0.0", "model.stack.blocks.layer.branches.1.dropout=0.0",
    "objective.kind=replaced_token", "train.steps=3", "data.packing=bucket",
)  # fmt: skip
"""Two models that share a table."""
STOPPED = 100_000


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one process and of two, of the same recipe; some stopped half-way, and went on with another number."""
    folder = tmp_path_factory.mktemp("home")
    tiny(folder, "one", *CALM)
    tiny(folder, "electra", *ELECTRA)
    cut_off(folder / "one", "one to fsdp")

    def work(rank: int) -> None:
        tiny(folder, "ddp", *CALM)
        tiny(folder, "fsdp", *CALM, FSDP)
        tiny(folder, "one to fsdp", FSDP, resume=True)
        tiny(folder, "electra ddp", *ELECTRA)

    together(work)
    cut_off(folder / "ddp", "ddp to one")
    tiny(folder, "ddp to one", resume=True)
    return folder


def check_same(one: Path, other: Path) -> None:
    """Line by line: what depends on rounding nearly, all else exactly."""
    for mine, theirs in zip(facts(one), facts(other), strict=True):
        for key, value in mine.items():
            close = key in ("loss", "valid_loss", "terms", "valid_terms")
            tolerance = 1e-6 if close else 1e-4  # the length of a gradient is summed up in single precision
            assert theirs[key] == (pytest.approx(value, rel=tolerance) if close or key == "gradient_norm" else value)


@pytest.mark.row("OPT-15", clause="2 gloo processes: gradients equal one process on the joined batch")
@pytest.mark.parametrize("other", ["ddp", "fsdp"])
def test_two_processes_train_as_one_does(home: Path, other: str) -> None:
    assert len([line for line in facts(home / "one") if "loss" in line]) == STEPS
    check_same(home / "one", home / other)


@pytest.mark.parametrize("other", ["ddp to one", "one to fsdp"])
def test_what_some_processes_saved_others_go_on_with(home: Path, other: str) -> None:
    assert f'resumed {{"step": {HALF}' in (home / other / "events.log").read_text()
    check_same(home / "one", home / other)


@pytest.mark.slow
def test_one_process_goes_on_with_shares_and_two_with_a_whole(home: Path) -> None:
    cut_off(home / "fsdp", "fsdp to one")
    tiny(home, "fsdp to one", resume=True)
    cut_off(home / "one", "one to ddp")
    together(lambda rank: tiny(home, "one to ddp", resume=True))
    for name in ("fsdp to one", "one to ddp"):
        assert f'resumed {{"step": {HALF}' in (home / name / "events.log").read_text()
        check_same(home / "one", home / name)


def test_models_that_share_a_table_learn_as_in_one_process(home: Path) -> None:
    check_same(home / "electra", home / "electra ddp")


@pytest.mark.slow
def test_models_that_share_a_divided_table_learn_as_in_one_process(home: Path) -> None:
    together(lambda rank: tiny(home, "electra fsdp", *ELECTRA, FSDP))
    check_same(home / "electra", home / "electra fsdp")


@pytest.mark.parametrize("step", [HALF, STEPS])
def test_the_model_of_a_divided_run_is_read_by_one_process(home: Path, step: int) -> None:
    mine, theirs = (Run.open(home / name).model(step).state_dict() for name in ("one", "fsdp"))
    torch.testing.assert_close(theirs, mine, rtol=1e-4, atol=1e-5)
    there = home / "fsdp" / "checkpoints" / step_name(step)
    assert (there / "model.safetensors").exists() == (step == STEPS)  # at the end, for everybody to read


def test_a_bit_that_flips_in_a_share_is_found(home: Path) -> None:
    path = cut_off(home / "fsdp", "damaged") / "checkpoints" / step_name(HALF)
    for file in sorted((path / "shards").iterdir()):
        good = file.read_bytes()
        file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        with pytest.raises(CheckpointError, match="damaged"):
            checkpoint.verify(path)
        file.write_bytes(good)
    checkpoint.verify(path)


@pytest.mark.row(
    "OPT-15",
    clause=(
        "data parallel: gradients are averaged over the replicas",
        "2 gloo processes: gradients equal one process on the joined batch",
    ),
)
def test_processes_that_use_other_heads_add_up_to_one() -> None:
    shares = [torch.tensor([0, 1]), torch.tensor([2, 4])]  # one task each; nobody asks for the third
    wanted = by_task(torch.cat(shares), World())
    assert any("mood" in name for name in wanted) and not any("tags" in name for name in wanted)

    def work(rank: int) -> None:
        found = by_task(shares[rank], World(rank=rank, size=2))
        assert found.keys() == wanted.keys()  # what nobody used has no gradient
        for name, value in wanted.items():
            torch.testing.assert_close(2 * found[name], value)

    together(work)


def by_task(rows: torch.Tensor, world: World) -> dict[str, torch.Tensor]:
    """Gradients of a mixture in which each row says whose it is."""
    models = built(BY_TASK, model(Encoder))
    batch, entry = BY_TASK.prepare(raw(), WORDS, noise()), wrapped(LossModule(BY_TASK, models), world, "ddp")
    loss = entry(batch.take(rows), noise(), BY_TASK.counts(batch))
    torch.stack([term.sum for term in loss.values()]).sum().backward()
    return gradients(models)


def ended_after_the_first_line(metrics: Path) -> None:
    while not metrics.exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_to_one_process_stops_all_after_the_same_step(tmp_path: Path) -> None:
    def work(rank: int) -> None:
        if rank == 1:
            threading.Thread(target=ended_after_the_first_line, args=(tmp_path / "run" / "metrics.jsonl",)).start()
        with pytest.raises(Interrupted, match=r"SIGTERM: saved at step \d+") as caught:
            tiny(tmp_path, "run", f"train.steps={STOPPED}", "checkpoint.every=0", "evaluate.every=0")
        assert caught.value.exit_code == 143
        (tmp_path / f"said {rank}").write_text(str(caught.value))

    together(work)
    assert (tmp_path / "said 0").read_text() == (tmp_path / "said 1").read_text()
    run = Run.open(tmp_path / "run")
    assert run.state["progress"]["step"] == list(run.metrics())[-1]["step"] < STOPPED
    assert "interrupted" in (run.folder / "events.log").read_text()


def test_where_the_first_process_fails_all_do_and_one_says_why(tmp_path: Path) -> None:
    tiny(tmp_path, "run", "train.steps=1")

    def work(rank: int) -> None:
        kind: type[AnyformerError] = OtherRankFailed if rank else SpecError
        with pytest.raises(kind, match="Rank 0 failed; see its message above" if rank else "exists already") as caught:
            tiny(tmp_path, "run")
        assert caught.value.exit_code == SpecError.exit_code

    together(work)


def test_what_several_processes_cannot_do_is_refused_with_the_reason(tmp_path: Path) -> None:
    def work(rank: int) -> None:
        with pytest.raises(SpecError, match="cannot be shared among 2 processes"):
            tiny(tmp_path, "run", "model.preset=small-encoder", "objective.kind=contrastive")
        with pytest.raises(SpecError, match="muon orthogonalises whole matrices, and these are sharded"):
            tiny(tmp_path, "other", FSDP, "optimizer.kind=muon")
        with pytest.raises(SpecError, match="each process would use other heads"):
            refuse_cut(BY_TASK, World(rank=rank, size=2), sharded=True)

    together(work)


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # the compiler's own look at what it is given
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_compiled_layers_that_are_computed_twice_train_as_in_one_process(tmp_path: Path, how: str) -> None:
    short = (*CALM, "train.steps=4", "data.packing=pack")
    tiny(tmp_path, "one", *short)
    together(lambda rank: tiny(tmp_path, how, *short, "train.compile=true", f"train.parallel={how}"))
    check_same(tmp_path / "one", tmp_path / how)


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["sqrt", "none", "[1]"])
def test_shares_are_divided_again_among_more_processes(tmp_path: Path, choice: str) -> None:
    more = (*CALM, FSDP, "train.steps=8", "checkpoint.every=4", "model.stack.depth=3", f"train.recompute={choice}")
    together(lambda rank: tiny(tmp_path, "two", *more))
    cut_off(tmp_path / "two", "three", step=4)
    together(lambda rank: tiny(tmp_path, "three", resume=True), size=3)
    check_same(tmp_path / "two", tmp_path / "three")


@pytest.mark.slow
def test_torchrun_trains_and_goes_on_from_the_command_line(tmp_path: Path) -> None:
    reference = tiny(tmp_path, "one", *CALM)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "anyformer",
    ]
    words = ["train", text(tmp_path), *TINY, *CALM, FSDP, "--out", str(tmp_path / "two")]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    said = subprocess.run([*command, *words], env=environment, capture_output=True, text=True, check=True).stdout
    assert said.count("done:") == said.count("reading the data") == 1  # one process speaks
    check_same(reference.folder, tmp_path / "two")
    again = subprocess.run([*command, *words], env=environment, capture_output=True, text=True, check=False)
    assert again.returncode and again.stderr.count("error: ") == 1 and "exists already" in again.stderr
