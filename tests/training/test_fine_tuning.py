"""Runs that start with the weights of others: of runs and of Hugging Face folders, whole, in part, or frozen."""

import json
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.training.small import SENTENCES, facts, text, tiny

from anyformer.cli.main import main
from anyformer.errors import AnyformerError
from anyformer.run import Run, train
from anyformer.training import Session, Watcher
from anyformer.training.loop.budget import Observer

SHORT = (
    "train.steps=2",
    "data.context=32",
    "train.batch_tokens=256",
    "data.valid=0.2",
    "evaluate.every=2",
    "sample.tokens=2",
)


class Listening(Watcher):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def log(self, text: str) -> None:
        self.messages.append(text)

    @property
    def start(self) -> str:
        return next(message for message in self.messages if message.startswith("init_from"))


def labelled(folder: Path, labels: tuple[str, ...] = ("left", "right")) -> str:
    file = folder / f"labels{len(labels)}.jsonl"
    rows = [{"text": sentence, "label": labels[n % len(labels)]} for n, sentence in enumerate(SENTENCES)]
    file.write_text("\n".join(map(json.dumps, rows)))
    return str(file)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def decoder(home: Path) -> Run:
    return tiny(home, "decoder", "train.steps=2")


@pytest.fixture(scope="module")
def encoder(home: Path) -> Run:
    return tiny(home, "encoder", "train.steps=2", "model.preset=small-encoder", "train.batch_tokens=512")


def tuned(home: Path, target: str, start: object, name: str, *more: str, watcher: Watcher | None = None) -> Run:
    folder = start.folder if isinstance(start, Run) else start
    return train(
        target, *SHORT, *more, f"init_from={folder}", out=home / name, cache=home / "cache", watcher=watcher,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_classifier_takes_the_model_and_the_tokenizer_and_gets_a_new_head(
    kind: str, home: Path, request: pytest.FixtureRequest
) -> None:
    start, listening = request.getfixturevalue(kind), Listening()
    run = tuned(home, labelled(home), start, f"{kind}-classes", "optimizer.lr=1e-9", watcher=listening)
    assert run.recipe.model.kind == kind and run.recipe.model.output_stack.dim == 16
    assert run.recipe.model.output_stack.head.kind == "classifier"
    assert run.tokenizer.fingerprint() == start.tokenizer.fingerprint()
    ours, theirs = run.model().state_dict(), start.model().state_dict()
    taken = [name for name in ours if not name.startswith("head.")]
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-6) for name in taken)
    assert f"{len(taken)} of {len(ours)} tensors" in listening.start and "New: head.classes (2)." in listening.start
    assert ("Left out: head" in listening.start) == (kind == "encoder") and "\n" not in listening.start
    assert run.classify(["the cat jumps"])[0].label in ("left", "right")


def test_a_classifier_of_other_classes_gets_another_last_layer_only(home: Path, encoder: Run) -> None:
    first = tuned(home, labelled(home), encoder, "two")
    listening = Listening()
    second = tuned(home, labelled(home, ("a", "b", "c")), first, "three", watcher=listening)
    assert second.model().state_dict()["head.classes.weight"].shape == (3, 16)
    assert "New: head.classes (2). Left out: head.classes (2)." in listening.start


def test_texts_and_pairs_take_the_model_too(home: Path, encoder: Run, decoder: Run) -> None:
    pairs = home / "pairs.tsv"
    pairs.write_text("".join(f"{a}\t{b}\n" for a, b in zip(SENTENCES[::2], SENTENCES[1::2], strict=True)))
    assert tuned(home, text(home), encoder, "texts").recipe.objective.kind == "masked_words"  # type: ignore[union-attr]
    assert tuned(home, str(pairs), decoder, "answers").recipe.objective.kind == "seq2seq"  # type: ignore[union-attr]
    assert tuned(home, str(pairs), encoder, "near").recipe.objective.kind == "contrastive"  # type: ignore[union-attr]


def test_defaults_suit_weights_that_are_there(home: Path, encoder: Run) -> None:
    recipe = train(
        labelled(home), "train.steps=1", f"init_from={encoder.folder}", out=home / "defaults", cache=home / "cache"
    ).recipe
    assert (recipe.optimizer.lr, recipe.schedule.kind, recipe.train.batch_tokens) == (0.0025, "linear", 2048)
    assert recipe.data is not None and recipe.data.context == 64  # 95% of the texts, in bytes
    origins = json.loads((home / "defaults" / "sources.json").read_text())
    assert origins["optimizer.lr"] == "derived: fine-tuning" and origins["model.dim"].startswith("init_from ")


@pytest.mark.parametrize(
    ("start", "more", "words"),
    [
        ("nowhere", (), "init_from=.*nowhere: no such file or folder"),
        (".", (), "neither a run folder nor a Hugging Face folder"),
        ("encoder", ("objective.kind=next_token",), "an encoder sees the answer"),
        ("decoder", ("objective.kind=masked_words",), "a decoder sees one"),
        ("encoder", ("model.dim=8", "model.stack.blocks.layer.branches.0.part.heads=2"), "no tensor of that model"),
        ("encoder", ("tune=lora", 'tune.roles=["head"]'), r"tune\.roles.*Roles"),
        ("encoder", ("tune=adapters",), "adapters.*lora"),
    ],
)  # fmt: skip
def test_wrong_combinations_are_refused_before_a_folder_is_made(
    start: str, more: tuple[str, ...], words: str, home: Path, encoder: Run, decoder: Run
) -> None:
    with pytest.raises(AnyformerError, match=words):
        tuned(home, text(home) if "objective" in str(more) else labelled(home), home / start, "refused", *more)
    assert not (home / "refused").exists()


def test_frozen_layers_keep_their_weights_and_have_no_state(home: Path, encoder: Run) -> None:
    run = tuned(home, labelled(home), encoder, "top", "tune=layers", "tune.rates=[1, 1, 0]", "optimizer.lr=1e-2")
    ours, theirs = run.model("last").state_dict(), encoder.model().state_dict()
    same = {name for name in ours if name in theirs and torch.equal(ours[name], theirs[name])}
    assert {name.split(".")[0] for name in same} == {"embedding", "stack"}
    assert all(name.startswith(("embedding", "stack.layers.0")) for name in same)
    assert not any(name.startswith(("embedding", "stack.layers.0")) for name in set(ours) - same)
    names = load_file(run.checkpoint("last") / "optimizer.safetensors")
    assert not any(name.startswith(("model.embedding", "model.stack.layers.0")) for name in names)


@pytest.fixture(scope="module")
def lora(home: Path, decoder: Run) -> Run:
    return tuned(
        home, text(home), decoder, "lora", "tune=lora", "tune.rank=2", "optimizer.lr=3e-2", "train.steps=6",
        "evaluate.every=2", "checkpoint.every=2",
    )  # fmt: skip


def test_updates_learn_alone_and_are_saved_with_the_run(lora: Run, decoder: Run) -> None:
    ours, theirs = lora.model("last").state_dict(), decoder.model().state_dict()
    updates = {name for name in ours if ".lora_b." in name or ".lora_a." in name}
    assert updates and all(ours[name].any() for name in updates)
    assert {name.replace(".frozen.", ".") for name in set(ours) - updates} == set(theirs)
    assert all(torch.equal(ours[name], theirs[name.replace(".frozen.", ".")]) for name in set(ours) - updates)


def test_the_merged_run_answers_as_the_run_with_updates(
    lora: Run, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["merge", str(lora.folder), "--out", str(home / "merged"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    merged = Run.open(home / "merged")
    tokens = torch.randint(merged.recipe.model.input_stack.vocabulary, (2, 20))
    with torch.no_grad():
        ours, theirs = lora.model()(tokens).y, merged.model()(tokens).y
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert printed["largest_difference"] <= 1e-5 and printed["params"] < printed["params_before"]
    assert merged.recipe.tune is None and "lora" not in (home / "merged" / "recipe.toml").read_text()
    assert merged.evaluate(limit=4)["loss"].value == pytest.approx(lora.evaluate(limit=4)["loss"].value, abs=1e-5)
    assert main(["generate", str(merged.folder), "the cat", "--max-new", "3"]) == 0
    again = train(text(home), *SHORT, out=home / "again", cache=home / "cache", init_from=merged)
    assert again.complete


def test_a_run_without_updates_cannot_be_merged(decoder: Run, home: Path) -> None:
    assert main(["merge", str(decoder.folder), "--out", str(home / "nothing")]) == 2
    assert not (home / "nothing").exists()


class StopAfter(Watcher):
    """Presses Ctrl-C after a step."""

    def __init__(self, step: int) -> None:
        self.last = step

    def stepped(self, session: Session) -> tuple[Observer, ...]:
        return (lambda step: signal.raise_signal(signal.SIGINT) if step.number == self.last else None,)


@pytest.mark.parametrize(
    "tune",
    [("tune=lora", "tune.rank=2"), pytest.param(("tune=layers", "tune.rates=[1, 0.5, 0]"), marks=pytest.mark.slow)],
    ids=["lora", "layers"],
)
def test_an_interrupted_run_goes_on_exactly(tune: tuple[str, ...], home: Path, decoder: Run) -> None:
    more = (*tune, "train.steps=4", "checkpoint.every=2", "evaluate.every=2", "log.every=1")
    name = tune[0].removeprefix("tune=")
    whole = tuned(home, text(home), decoder, f"whole-{name}", *more)
    with pytest.raises(AnyformerError, match="saved at step 2"):
        tuned(home, text(home), decoder, f"broken-{name}", *more, watcher=StopAfter(2))
    resumed = train(home / f"broken-{name}", resume=True, cache=home / "cache")
    assert facts(resumed) == facts(whole)
    ours, theirs = resumed.model("last").state_dict(), whole.model("last").state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
