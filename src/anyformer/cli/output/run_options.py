"""Helpers shared by the verbs that use a trained run: opening it, reading texts, generation settings, progress."""

import difflib
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from anyformer.cli.output.screen import Screen, note, visible
from anyformer.core import decode
from anyformer.core.fields import did_you_mean
from anyformer.core.plain_data import assign, parse_override, split
from anyformer.core.readable_numbers import listed
from anyformer.core.schema import describe
from anyformer.core.spec import no_such_key
from anyformer.data.record import Record
from anyformer.data.sources.files import existing, lines
from anyformer.data.sources.named_source import texts_with
from anyformer.data.tokenizers.tokenizer import BROKEN
from anyformer.disk import RECIPE, is_run_of_study
from anyformer.errors import CheckpointError, Problem, SpecError
from anyformer.generation.beam.beam_search import Beam
from anyformer.generation.samplers.sampler import Filter, Sampler
from anyformer.inference.text_generator import GenerationConfig
from anyformer.objectives.objective import Predictor
from anyformer.reporting.run_files import run_folders
from anyformer.run import Choice, Run
from anyformer.study.study_folder import STUDY
from anyformer.training.recipes.toml_layers import preset_names

T = TypeVar("T")
Settings = dict[str, dict[str, Any]]
"""Section (sampler, beam or source) -> its settings by dotted key."""
SECTIONS = ("sampler", "beam", "source")
SETTING = re.compile(rf"(data\.(?=source\b))?({'|'.join(SECTIONS)})(\.[\w.\[\]]+)?\s*=")
"""A setting; the keys of the source may have the prefix of a recipe, which messages about data use."""
BARE = re.compile(r"(temperature|top_k|top_p|min_p|typical|repetition_penalty|logit_bias|width|beams|penalty)\s*=")
UNKNOWN = re.compile(r"([A-Za-z_]\w*)(\.\w+)+=")
TABLES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
TOGETHER = 64
"""Number of texts in a batch that is classified or embedded."""


def open_run(folder: Path) -> Run:
    """Opens a run. If the folder is not a run, the error names existing runs."""
    try:
        return Run.open(folder)
    except CheckpointError:
        if (folder.suffix == ".toml" and folder.exists()) or (folder / RECIPE).is_file():
            raise
        if str(folder) in preset_names():
            raise CheckpointError(
                f"{folder}: is a preset, not a run. Train it first: anyformer train {folder}"
            ) from None
        if (folder / STUDY).is_file():
            runs = sorted(str(run) for run in run_folders(folder) if is_run_of_study(run))
            named = f" Its runs: {listed(runs, 3)}." if runs else ""
            page = f"Its page: anyformer report {folder}"
            raise CheckpointError(f"{folder}: is a study of several runs, not a run.{named} {page}") from None
        roots = {root for root in (folder.parent, Path("runs")) if root.is_dir()}
        known = sorted({str(run) for root in roots for run in run_folders(root)})
        near = difflib.get_close_matches(str(folder), known, 1)
        guess = f" Did you mean {near[0]}?" if near else f" There is {', '.join(known[:6])}." if known else ""
        what = "is not a run folder" if folder.exists() else "there is no such run"
        raise CheckpointError(f"{folder}: {what}.{guess} All runs: anyformer runs") from None


def ready(run: Run, device: str, checkpoint: str, screen: Screen) -> Predictor:
    """The model of a checkpoint (best, last, or a step) on a device, which is named on standard error. A device that is
    not available is an error."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available.get(device, True):
        raise SpecError(f"--device {device}: this device is not available. Use --device cpu.")
    choice = checkpoint_choice(checkpoint)
    predictor = run.trained(device, choice)
    note(screen, f"{run.folder}: {run.describe(choice)}")
    return predictor


def checkpoint_choice(checkpoint: str) -> Choice:
    """The value of --checkpoint: best, last, or a step."""
    if checkpoint.isdecimal():
        return int(checkpoint)
    if checkpoint not in ("best", "last"):
        raise SpecError(f"--checkpoint {checkpoint}: write best, last, or the number of a step.")
    return cast(Literal["best", "last"], checkpoint)


def sort_words(words: Sequence[str] | None, screen: Screen) -> tuple[list[str], Settings]:
    """Separates texts from settings such as `sampler.temperature=0.8`; words after `--` are always texts."""
    texts, settings = list[str](), Settings()
    words = words or ()
    literal = len(words) - screen.literal_words
    for place, word in enumerate(words):
        if place >= literal:
            texts.append(word)
        elif bare := BARE.match(word):
            section = "beam" if bare[1] in ("width", "penalty") else "sampler"
            better = word.replace("beams", "beam", 1) if bare[1] == "beams" else f"{section}.{word}"
            raise SpecError(f"{word!r} would be read as text. Write {better}")
        elif SETTING.match(word):
            key, value = parse_override(word.removeprefix("data."))
            section, *rest = split(key)
            settings.setdefault(section, {})[".".join(rest)] = value
        elif unknown := UNKNOWN.match(word):
            guess = did_you_mean(unknown[1], SECTIONS)
            raise SpecError(
                f"{word!r} is not a setting of a trained run.{guess} Text goes after two dashes: -- {word!r}"
            )
        else:
            texts.append(word)
    return texts, settings


def generation_config(
    settings: Settings, max_new: int | None = None, stop: Sequence[str] = (), seed: int = 0
) -> GenerationConfig:
    """The generation configuration from the `sampler.` and `beam.` settings."""
    sampler = _sampler(settings["sampler"]) if "sampler" in settings else None
    beam = _beam(settings["beam"]) if "beam" in settings else None
    return GenerationConfig(sampler=sampler, beam=beam, max_new=max_new, stop=tuple(stop), seed=seed)


def _sampler(settings: Mapping[str, Any]) -> Sampler:
    """A sampler from its fields, and from filters by name, such as `sampler.top_p=0.9`."""
    for family in (Sampler, Filter):
        family.load_kinds()
    if "" in settings:  # sampler=NAME
        decode(Sampler, settings[""], "sampler")
    tree: dict[str, Any] = {"kind": settings.get("kind", "sample")}
    chosen = Sampler.kinds.get(tree["kind"]) if isinstance(tree["kind"], str) else None
    fields = {option.name for option in describe(chosen)} if chosen else set()
    filters: list[Filter] = []
    for key, value in settings.items():
        if key in Filter.kinds:
            filters.append(_filter(key, value))
        elif chosen is None or key.split(".")[0] in fields | {"kind"}:
            assign(tree, key, value)
        else:
            problem = no_such_key(chosen, key, "sampler", Filter.kinds if "filters" in fields else ())
            raise SpecError(problems=[problem])
    sampler = decode(Sampler, tree, "sampler")
    if not filters:
        return sampler
    present = sampler.to_dict().get("filters")
    if present is None:
        text = f"the sampler {sampler.kind!r} takes no filters. Leave it out, or use sampler.kind=sample."
        raise SpecError(problems=[Problem(f"sampler.{filters[0].kind}", text)])
    return sampler.with_("filters", [*present, *filters])


def _filter(kind: str, value: Any) -> Filter:
    """A filter from its only option; errors name the setting `sampler.KIND` instead of the option."""
    (option,) = describe(Filter.kinds[kind])
    try:
        return decode(Filter, {"kind": kind, option.name: value})
    except SpecError as error:
        paths = [problem.path.replace(option.name, f"sampler.{kind}", 1) for problem in error.problems]
        problems = [Problem(path, problem.text) for path, problem in zip(paths, error.problems, strict=True)]
        raise SpecError(problems=problems) from None


def _beam(settings: Mapping[str, Any]) -> Beam:
    """Beam search from its settings: `beam=4` sets the width; the default kind of penalty is `power`."""
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        assign(tree, key or "width", value)
    if isinstance(tree.get("penalty"), dict):
        tree["penalty"].setdefault("kind", "power")
    return decode(Beam, tree, "beam")


def texts_in(texts: Sequence[str], settings: Settings, file: Path | None, what: str) -> Iterator[str]:
    """The texts from the command line, from a file, a table or a folder, or from standard input, one per line."""
    return (record.text for record in records_in(texts, settings, file, what))


def records_in(
    texts: Sequence[str],
    settings: Settings,
    file: Path | None,
    what: str,
    parse: Callable[[str], Record] = Record,
) -> Iterator[Record]:
    """The same as records, with the other columns of a table. `parse`: a line as a record."""
    if texts and file is not None:
        setting = next((text for text in texts if re.match(r"\w+=", text)), None)
        hint = f" If {setting!r} is a setting of the file, write source.{setting}" if setting else " Use one of them."
        raise SpecError(f"--file {file}: cannot be combined with text on the command line.{hint}")
    if texts:
        return map(parse, texts)
    if file is not None and str(file) != "-":
        path, options = existing(str(file)), settings.get("source", {})
        name = re.sub(r"\.(gz|zst)$", "", path.name.lower())
        if path.is_dir() or name.endswith(TABLES) or options:
            return iter(texts_with(str(file), options).records())
        return (parse(line) for _, line in lines(path) if line.strip())
    if file is None and sys.stdin.isatty():
        raise SpecError(f"there is no {what}. Write it after the run, name a file (--file FILE), or pipe lines in.")
    return (parse(line.rstrip("\r\n")) for line in sys.stdin if line.strip())


def groups(texts: Iterator[T], size: int = TOGETHER) -> Iterator[list[T]]:
    """The texts, or records, in lists of at most `size`."""
    while group := list(islice(texts, size)):
        yield group


def safe(text: str) -> str:
    """Generated text with control characters escaped, except line breaks and tabs."""
    return "".join(letter if letter in "\n\t" else visible(letter) for letter in text)


def clean(text: str) -> str:
    """Generated text without control characters and without replacement characters of invalid bytes."""
    return "".join(
        letter for letter in text if letter in "\n\t" or (letter != BROKEN and unicodedata.category(letter)[0] != "C")
    )


def note_cut(screen: Screen, cut: int, trained: Predictor) -> None:
    """Notes how many texts were truncated to the context of the model."""
    if cut:
        many = "1 text is" if cut == 1 else f"{cut:,} texts are"
        learned = f"the {trained.context} tokens that the model learned from"
        note(screen, f"{many} longer than {learned}: the end was not read.")


@contextmanager
def progress(screen: Screen, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr if it is a terminal, as a function of the number of finished items."""
    console = Console(stderr=True)
    if screen.quiet or not console.is_terminal:
        yield lambda done: None
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as display:
        task = display.add_task("", total=total)
        yield lambda done: display.update(task, completed=done)
