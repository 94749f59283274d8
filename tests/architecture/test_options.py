"""The words of the command line are a promise: a new option is added here; none goes without a changelog line."""

from typing import Any

from anyformer.cli.main import program

ALWAYS = ["--json", "--quiet", "-q"]
FROZEN = {
    "": ["--debug", "--import", "--version", "-v"],
    "chat": [*ALWAYS, "--checkpoint", "--device", "--max-new", "--seed", "--system"],
    "claims": [*ALWAYS, "--out", "--train"],
    "classify": [*ALWAYS, "--checkpoint", "--device", "--file", "--top", "-f"],
    "compare": [*ALWAYS, "--arms", "--dry-run", "--match", "--minutes", "--out", "--pack", "--seeds"],
    "config": [],
    "config check": ALWAYS,
    "config diff": ALWAYS,
    "config schema": ALWAYS,
    "config show": [*ALWAYS, "--svg", "--unroll"],
    "cost": [*ALWAYS, "--batch", "--depth", "--length", "--past", "--source"],
    "data": ALWAYS,
    "doctor": ALWAYS,
    "embed": [*ALWAYS, "--checkpoint", "--device", "--file", "--out", "-f"],
    "evaluate": [*ALWAYS, "--checkpoint", "--device", "--limit", "--metric", "--split", "--yardsticks"],
    "export": [*ALWAYS, "--checkpoint", "--force", "--out", "--to"],
    "fill": [*ALWAYS, "--checkpoint", "--device", "--file", "--top", "-f"],
    "generate": [*ALWAYS, "--checkpoint", "--device", "--file", "--max-new", "--seed", "--stop", "-f"],
    "import": [*ALWAYS, "--out"],
    "merge": [*ALWAYS, "--out"],
    "new": [*ALWAYS, "--task"],
    "parts": [*ALWAYS, "--by", "--family", "--perspective", "--picture"],
    "presets": [*ALWAYS, "--out"],
    "report": [*ALWAYS, "--out"],
    "runs": ALWAYS,
    "scale": [
        *ALWAYS,
        "--arms",
        "--budgets",
        "--dry-run",
        "--minutes",
        "--out",
        "--pack",
        "--rate",
        "--ratio",
        "--rungs",
        "--seeds",
    ],
    "search": [*ALWAYS, "--checkpoint", "--device", "--index", "--top"],
    "shrink": [
        *ALWAYS,
        "--average",
        "--by",
        "--control",
        "--device",
        "--distil",
        "--limit",
        "--out",
        "--prune",
        "--quantise",
        "--rounds",
        "--scope",
        "--seed",
        "--steps",
    ],
    "train": [*ALWAYS, "--dry-run", "--out", "--resume"],
    "view": [*ALWAYS, "--checkpoint", "--head", "--layer", "--out", "--target", "--token"],
}


def options(command: Any, name: str = "") -> dict[str, list[str]]:
    """Verb -> its options besides --help, for a command and all below it."""
    own = sorted(word for it in command.params for word in it.opts if word.startswith("-"))
    below = [options(inner, f"{name} {verb}".strip()) for verb, inner in getattr(command, "commands", {}).items()]
    return {name: own} | {verb: words for found in below for verb, words in found.items()}


def test_the_options_of_every_verb_are_those_of_the_list() -> None:
    assert options(program()) == {verb: sorted(words) for verb, words in FROZEN.items()}
