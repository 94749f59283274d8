"""Whole commands from a cold process: `python -m benchmarks.verbs --data FOLDER --out FILE.jsonl`

Each verb runs twice, with empty and with filled caches; then a plain script around transformers (`benchmarks.plain`)
does the same work with a model of the same shape. Times are those of a user: from the command to its end, with the
start of Python. Installed packages have their bytecode; where PYTHONDONTWRITEBYTECODE keeps Python from storing it, it
is written before the clock starts, for both sides. FOLDER holds speeches.jsonl.gz and en-de.tsv.gz; `--tiny` is a trial
of a minute.
"""

import argparse
import csv
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

LONGEST = 20
"""Words of a sentence of the pairs, at most."""
MAX_NEW = 100
"""Tokens of a translation at most, as our run allows as many as its longest target has."""


@dataclass(frozen=True)
class Size:
    """How much each command does."""

    text_bytes: int
    pairs: int
    steps: int
    sentences: int
    prompts: int
    texts: int


SIZES = {
    "gpu": Size(1_000_000, 30_000, 1000, 1000, 256, 10_000),
    "cpu": Size(200_000, 5_000, 100, 50, 16, 500),
    "tiny": Size(20_000, 400, 5, 5, 3, 10),
}


@dataclass(frozen=True)
class Command:
    """A verb of ours, and the plain script that does the same."""

    name: str
    ours: tuple[str, ...]
    plain: tuple[str, ...]


class Workshop:
    """A folder with the data, the runs and the caches of one benchmark."""

    def __init__(self, folder: Path, data: Path, size: Size, device: str) -> None:
        self.folder, self.size, self.device = folder, size, device
        self.text, self.pairs = folder / "text.txt", folder / "pairs.tsv"
        self.test, self.lines, self.classes = folder / "test.tsv", folder / "lines.txt", folder / "classes.jsonl"
        with gzip.open(data / "speeches.jsonl.gz", "rt", encoding="utf-8") as file:
            text = "\n\n".join(json.loads(line)["text"] for line in file)
        self.text.write_text(text[: size.text_bytes], encoding="utf-8")
        lines = [line[:400] for line in text.splitlines() if len(line) > 40]
        self.lines.write_text(
            "\n".join((lines * (1 + size.texts // max(len(lines), 1)))[: size.texts]), encoding="utf-8"
        )
        with gzip.open(data / "en-de.tsv.gz", "rt", encoding="utf-8", newline="") as file:
            rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            short = [row[-2:] for row in rows if all(0 < len(side.split()) <= LONGEST for side in row[-2:])]
        chosen, held_out = short[: size.pairs], short[size.pairs : size.pairs + size.sentences]
        sides = [(side, label) for row in chosen for side, label in zip(row, ("en", "de"), strict=True)]
        labelled = [json.dumps({"text": text, "label": label}) for text, label in sides]
        self.classes.write_text("\n".join(labelled), encoding="utf-8")
        for file_name, part in ((self.pairs, chosen), (self.test, held_out or chosen[: size.sentences])):
            file_name.write_text("".join("\t".join(row) + "\n" for row in part), encoding="utf-8")

    def commands(self) -> list[Command]:
        steps, size, words = f"train.steps={self.size.steps}", self.size, ("--max-new", "100")
        text_run, pair_run, class_run = (str(self.folder / f"{name}-run") for name in ("text", "pair", "class"))
        prompts = tuple(line[:60] for line in self.lines.read_text(encoding="utf-8").splitlines()[: size.prompts])
        text, pairs, test, lines = map(str, (self.text, self.pairs, self.test, self.lines))
        plain_text, plain_pairs = ("--out", f"{text_run}-plain"), ("--out", f"{pair_run}-plain")
        classes, plain_classes = str(self.classes), ("--out", f"{class_run}-plain")
        vectors = ("--file", lines, "--out", str(self.folder / "vectors.npy"))

        def count(number: int) -> tuple[str, ...]:
            return ("--data", lines, *plain_text, "--count", str(number))

        return [
            Command(
                "train text", ("train", text, steps, "--out", text_run), ("train_text", "--data", text, *plain_text)
            ),
            Command(
                "train pairs",
                ("train", pairs, steps, "--out", pair_run),
                ("train_pairs", "--data", pairs, *plain_pairs),
            ),
            Command(
                "evaluate, beam 4",
                ("evaluate", pair_run, test, "beam=4"),
                ("evaluate", "--data", test, *plain_pairs, "--count", str(size.sentences), "--max-new", str(MAX_NEW)),
            ),
            Command("generate, 1 prompt", ("generate", text_run, prompts[0], *words), ("generate", *count(1))),
            Command(
                f"generate, {size.prompts} prompts",
                ("generate", text_run, *prompts, *words),
                ("generate", *count(size.prompts)),
            ),
            Command(f"embed, {size.texts} texts", ("embed", text_run, *vectors), ("embed", *count(size.texts))),
            Command(
                "train classes",
                ("train", classes, "model.preset=small-encoder", steps, "--out", class_run),
                ("train_classes", "--data", classes, *plain_classes),
            ),
            Command(
                f"classify, {size.texts} texts",
                ("classify", class_run, "--file", lines),
                ("classify", "--data", lines, *plain_classes, "--count", str(size.texts)),
            ),
        ]

    def shape(self, command: Command) -> list[str]:
        """The options that give a plain script the shape and the work of our run."""
        if "train" not in command.plain[0]:
            return []
        recipe = tomllib.loads((Path(command.ours[-1]) / "recipe.toml").read_text(encoding="utf-8"))
        model = recipe["model"].get("decoder", recipe["model"])
        block = next(iter(model["stack"]["blocks"].values()))
        heads = next((branch["part"]["heads"] for branch in block["branches"] if "heads" in branch["part"]), 4)
        tokenizer = json.loads((Path(command.ours[-1]) / "tokenizer.json").read_text(encoding="utf-8"))
        words = tokenizer.get("model", {}).get("vocab", {})
        shape = {
            "dim": model["dim"], "depth": model["stack"]["depth"], "heads": heads, "vocab": max(len(words), 300),
            "context": recipe["data"]["context"], "batch-tokens": recipe["train"]["batch_tokens"],
            "steps": self.size.steps,
        }  # fmt: skip
        return [word for name, value in shape.items() for word in (f"--{name}", str(value))]

    def compile_python(self) -> None:
        """Writes the bytecode of every package that Python can import."""
        folders = [folder for folder in sys.path if Path(folder).is_dir() and folder != os.getcwd()]
        self.timed([sys.executable, "-m", "compileall", "-qq", "-j", "0", *folders, "benchmarks"], self.folder)

    def train_briefly(self, command: Command) -> None:
        """Trains both models for a few steps, as the runs of other commands."""
        steps = ("--quiet", f"train.steps={SIZES['tiny'].steps}")
        self.timed([sys.executable, "-m", "anyformer", *command.ours, *steps], self.folder / "brief")
        plain = [sys.executable, "-m", "benchmarks.plain", *command.plain, "--device", self.device]
        self.timed([*plain, *self.shape(command), "--steps", str(SIZES["tiny"].steps)], self.folder / "brief")

    def timed(self, words: Sequence[str], cache: Path) -> tuple[float, str]:
        """Seconds of a command in a process of its own, and the end of its output if it failed."""
        environment = {
            **os.environ, "XDG_CACHE_HOME": str(cache), "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "TRITON_CACHE_DIR": str(cache / "triton"), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true",
        }  # fmt: skip
        if sys.dont_write_bytecode:
            environment |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(self.folder / "bytecode")}
        began = time.perf_counter()
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        return time.perf_counter() - began, "" if done.returncode == 0 else (done.stdout + done.stderr)[-2000:]


def measure(workshop: Workshop, command: Command, rounds: int) -> dict[str, object]:
    """Seconds of our verb with empty and with filled caches, and of the plain script, the fastest of some rounds."""
    ours = [sys.executable, "-m", "anyformer", *command.ours]
    if command.ours[0] != "generate":
        ours += ["--quiet"]
    seconds: dict[str, list[float]] = {"cold": [], "warm": [], "plain": []}
    for number in range(rounds):
        cache = workshop.folder / f"cache-{command.name.split(',')[0].replace(' ', '-')}-{number}"
        for name in ("cold", "warm"):
            if command.ours[0] == "train":
                shutil.rmtree(command.ours[-1], ignore_errors=True)
            took, failure = workshop.timed(ours, cache)
            if failure:
                return {"command": command.name, "failed": failure}
            seconds[name].append(took)
        plain = [sys.executable, "-m", "benchmarks.plain", *command.plain, "--device", workshop.device]
        took, failure = workshop.timed([*plain, *workshop.shape(command)], workshop.folder / f"plain-cache-{number}")
        if failure:
            return {
                "command": command.name,
                **{name: min(values) for name, values in seconds.items() if values},
                "plain failed": failure,
            }
        seconds["plain"].append(took)
    best = {name: round(min(values), 2) for name, values in seconds.items()}
    return {"command": command.name, **best, "ratio": round(best["plain"] / best["cold"], 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--items", default="", help="commands to time, such as 'embed;classify'; all if left out")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    size = SIZES["tiny" if options.tiny else "gpu" if options.device == "cuda" else "cpu"]
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(Path(folder), options.data, size, options.device)
        if sys.dont_write_bytecode:
            workshop.compile_python()
        items = [item.strip() for item in options.items.split(";")]
        for command in workshop.commands():
            if not any(command.name.startswith(item) for item in items):
                if command.ours[0] == "train":
                    workshop.train_briefly(command)
                continue
            row = measure(workshop, command, options.rounds)
            print(json.dumps(row), flush=True)
            if options.out:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
