"""`from_pretrained`: a model of Hugging Face becomes a run folder like any other."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

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
from anyformer.interop.reading import CONFIG
from anyformer.interop.tokens import read_chat_template, read_tokenizer
from anyformer.objectives.contrastive import Contrastive
from anyformer.objectives.masked_words import MaskedWords
from anyformer.objectives.next_token import NextToken
from anyformer.objectives.objective import Objective
from anyformer.objectives.seq2seq import Seq2Seq
from anyformer.run import Run
from anyformer.training.loop.budget import Progress
from anyformer.training.recipes.recipe import Loaded, Recipe
from anyformer.training.runs import checkpoint
from anyformer.training.runs.run_folder import RunFolder, alone, refuse_occupied

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
    """Imports the model in a Hugging Face folder (config.json, safetensors, tokenizer.json) and opens it as a run.

    source: the folder. Nothing in it is executed, and pickles are not loaded.
    out: the run folder; runs/NAME if not given. If it holds an import of the same files, it is opened again.
    """
    path = Path(out) if out else RUNS / Path(source).absolute().name
    if (path / ENVIRONMENT).is_file():
        facts = checkpoint.read_facts(path / ENVIRONMENT).get(IMPORTED)
        if isinstance(facts, dict) and facts.get("fingerprint") == _fingerprint(PretrainedFolder.open(source)):
            return Run.open(path)
    return import_folder(source, path).run


def import_folder(source: str | Path, out: str | Path | None = None) -> ImportResult:
    """Reads a Hugging Face folder, compares its model with transformers' if that is installed, and writes a run."""
    path = Path(out) if out else RUNS / Path(source).absolute().name
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
    with alone(path):
        try:
            _write(path, folder, tokenizer, tensors)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
    kind = str(folder.config["model_type"])
    return ImportResult(Run.open(path), kind, folder.parameters, len(folder.weights), tokenizer is not None, agreement)


def _write(path: Path, folder: PretrainedFolder, tokenizer: Tokenizer | None, tensors: Mapping[str, Tensor]) -> None:
    """Writes the run; the recipe last, so a folder that has one is complete."""
    spec, objective = folder.spec, objective_for(folder)
    data = {
        "contents": Contents(pair=spec.needs_source).to_dict(),
        "context": min(stack.max_len for stack in spec.stacks.values()),
        "packing": Bucket().to_dict(),
        "splits": {},
    }
    origin = {"source": str(folder.path.absolute()), "fingerprint": _fingerprint(folder)}
    facts = {
        "anyformer": anyformer.__version__,
        "torch": torch.__version__,
        IMPORTED: {"model_type": folder.config["model_type"], **origin},
        "data": data,
    }
    write(path / ENVIRONMENT, json.dumps(facts, indent=1))
    if tokenizer is not None:
        tokenizer.save(path / TOKENIZER)
    if (template := read_chat_template(folder.path)) is not None:
        write(path / CHAT_TEMPLATE, template)
    checkpoint.save(path / CHECKPOINTS, 0, {"model": tensors}, {"progress": Progress().to_dict(), "complete": True})
    recipe = Recipe(model=spec, objective=objective)
    RunFolder(path).write_recipe(Loaded(path.name, recipe, {"model": origin["source"]}))


def objective_for(folder: PretrainedFolder) -> Objective:
    """The objective that a foreign model was trained with, as far as its head shows."""
    if folder.spec.needs_source:
        return Seq2Seq()
    stack = folder.spec.output_stack
    if stack.causal:
        return NextToken()
    return MaskedWords() if stack.head.scores_words and folder.family.fills else Contrastive(ends="marked")


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
    return sha256((folder.path / CONFIG).read_bytes() + json.dumps(stamps).encode()).hexdigest()[:16]
