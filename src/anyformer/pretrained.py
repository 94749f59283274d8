"""`from_pretrained`: a foreign model becomes a run folder like any other."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

import anyformer
from anyformer.core import ModelSpec
from anyformer.data.batching.packings.bucket import Bucket
from anyformer.data.preparation.contents import Contents
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.disk import CHAT_TEMPLATE, CHECKPOINTS, ENVIRONMENT, TOKENIZER, write
from anyformer.errors import CheckpointError
from anyformer.interop.agreement import Agreement, compare
from anyformer.interop.folder import PretrainedFolder
from anyformer.interop.gguf_header import SUFFIX
from anyformer.interop.reading import CONFIG
from anyformer.interop.tokens import CONFIGS, read_chat_template, read_ends, read_tokenizer, read_tokenizer_config
from anyformer.objectives.contrastive import Contrastive
from anyformer.objectives.masked_words import MaskedWords
from anyformer.objectives.next_token import NextToken
from anyformer.objectives.objective import Objective
from anyformer.objectives.seq2seq import Seq2Seq
from anyformer.run import Run
from anyformer.training.loop.budget import Progress
from anyformer.training.recipes.recipe import Loaded, Recipe
from anyformer.training.runs import checkpoint
from anyformer.training.runs.run_folder import RunFolder, locked, refuse_occupied

RUNS = Path("runs")
IMPORTED = "imported"
PROBE = "The quick brown fox jumps over the lazy dog, and nobody in the village was surprised."
PROBE_TOKENS = 24


@dataclass(frozen=True)
class ImportResult:
    """A run made from a foreign model, and the checks that were made."""

    run: Run
    model_type: str
    params: int
    tensors: int
    tokenizer: bool
    agreement: Agreement | None
    """Difference from transformers' outputs; None if they were not compared."""


def from_pretrained(source: str | Path, out: str | Path | None = None) -> Run:
    """Imports a Hugging Face folder (config.json, safetensors, tokenizer.json) or a GGUF file, and opens it as a run.

    source: the folder or file. Nothing in it is executed, and pickles are not loaded.
    out: the run folder; runs/NAME if not given. If it holds an import of the same files, it is opened again.
    """
    path = _run_path(source, out)
    if (path / ENVIRONMENT).is_file():
        facts = checkpoint.read_facts(path / ENVIRONMENT).get(IMPORTED)
        if isinstance(facts, dict) and facts.get("fingerprint") == _fingerprint(PretrainedFolder.open(source)):
            return Run.open(path)
    return import_folder(source, path).run


def import_folder(source: str | Path, out: str | Path | None = None) -> ImportResult:
    """Reads a foreign model, compares it with transformers' if that is installed, and writes a run."""
    path = _run_path(source, out)
    refuse_occupied(path)
    folder = PretrainedFolder.open(source)
    tokenizer = read_tokenizer(folder.path, folder.config, folder.spec)
    tensors = folder.tensors()
    model = folder.spec.build()
    try:
        checkpoint.load_weights(model, tensors)
    except CheckpointError as error:
        raise CheckpointError(f"{folder.path}: {error}") from None
    agreement = compare(folder, model.eval(), _probe(folder.spec, tokenizer))
    objective = objective_for(folder, tokenizer)
    with locked(path):
        try:
            _write(path, folder, tokenizer, tensors, objective)
        except BaseException:
            RunFolder(path).clear()
            raise
    kind = str(folder.config["model_type"])
    return ImportResult(Run.open(path), kind, folder.parameters, len(folder.weights), tokenizer is not None, agreement)


def _run_path(source: str | Path, out: str | Path | None) -> Path:
    name = Path(source).absolute().name
    return Path(out) if out else RUNS / name.removesuffix(SUFFIX)


def _write(
    path: Path,
    folder: PretrainedFolder,
    tokenizer: Tokenizer | None,
    tensors: Mapping[str, Tensor],
    objective: Objective,
) -> None:
    """Writes the run; the recipe last, so a folder that has one is complete."""
    spec = folder.spec
    lengths = [stack.max_len for stack in spec.stacks.values()]
    lengths += [folder.sentence.longest] if folder.sentence and folder.sentence.longest else []
    data = {
        "contents": Contents(pair=spec.needs_source).to_dict(),
        "context": min(lengths),
        "packing": Bucket().to_dict(),
        "splits": {},
    }
    origin = {"source": str(folder.path.absolute()), "fingerprint": _fingerprint(folder)}
    facts = {
        "anyformer": anyformer.__version__,
        "torch": torch.__version__,
        IMPORTED: {**imported_facts(folder), **origin},
        "data": data,
    }
    write(path / ENVIRONMENT, json.dumps(facts, indent=1))
    if tokenizer is not None:
        tokenizer.save(path / TOKENIZER)
        if config := read_tokenizer_config(folder.path, spec):
            write(path / CONFIGS[0], json.dumps(config, indent=1))
    if (template := read_chat_template(folder.path)) is not None:
        write(path / CHAT_TEMPLATE, template)
    checkpoint.save(path / CHECKPOINTS, 0, {"model": tensors}, {"progress": Progress().to_dict(), "complete": True})
    recipe = Recipe(model=spec, objective=objective)
    RunFolder(path).write_recipe(Loaded(path.name, recipe, {"model": origin["source"]}))


def imported_facts(folder: PretrainedFolder) -> dict[str, Any]:
    """The facts of a config that an export needs to write the same folder again: its class and special tokens."""
    ids = {name: value for name, value in folder.config.items() if _is_id(name, value)}
    names = folder.config.get("architectures")
    architecture = names[0] if isinstance(names, list) and names else ""
    return {"model_type": folder.config["model_type"], "architecture": architecture, "ids": ids}


def _is_id(name: str, value: Any) -> bool:
    return name.endswith("_token_id") and (value is None or type(value) is int)


def objective_for(folder: PretrainedFolder, tokenizer: Tokenizer | None) -> Objective:
    """The objective that a foreign model was trained with, as far as its head shows."""
    if folder.sentence is not None:
        return Contrastive(ends=_ends(folder, tokenizer), vectors="unit" if folder.sentence.unit else "pooled")
    if folder.spec.needs_source:
        return Seq2Seq()
    stack = folder.spec.output_stack
    if stack.causal:
        return NextToken()
    return MaskedWords() if stack.head.scores_words and folder.family.fills else Contrastive(ends="marked")


def _ends(folder: PretrainedFolder, tokenizer: Tokenizer | None) -> Literal["bare", "marked"]:
    """Whether a sentence-embedding model reads special tokens around a text."""
    if tokenizer is None:
        raise CheckpointError(f"{folder.path}: has no tokenizer.json, and embeds texts.")
    before, after = read_ends(folder.path)
    if not before and not after:
        return "bare"
    if (before, after) == ([tokenizer.words.cls], [tokenizer.words.sep]):
        return "marked"
    raise CheckpointError(
        f"{folder.path / 'tokenizer.json'}: puts the ids {before} before a text and {after} behind it; only none, or "
        f"{[tokenizer.words.cls]} and {[tokenizer.words.sep]}, can be imported."
    )


def _probe(spec: ModelSpec, tokenizer: Tokenizer | None) -> Tensor:
    """Tokens [1 t] to compare two models with: those of a sentence, or random ones without a tokenizer."""
    length = min(PROBE_TOKENS, *(stack.max_len for stack in spec.stacks.values()))
    ids = tokenizer.encode(PROBE) if tokenizer else []
    if not ids:
        rng = torch.Generator().manual_seed(0)
        ids = torch.randint(spec.input_stack.vocabulary, (length,), generator=rng).tolist()
    return torch.tensor([ids[:length]])


def _fingerprint(folder: PretrainedFolder) -> str:
    """A hash that changes with the config and with the sizes and times of the weights."""
    files = sorted({facts.file for facts in folder.weights.facts.values()})
    stamps = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    config = (folder.path / CONFIG).read_bytes() if folder.path.is_dir() else b""
    modules = [folder.spec.digest(), *folder.sentence[1:]] if folder.sentence else []
    return sha256(config + json.dumps([*stamps, *modules]).encode()).hexdigest()[:16]
