"""Merges low-rank updates into the weights that they were trained for: W + (alpha / r) B A, as an ordinary run."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from anyformer.core import Frame, Model
from anyformer.disk import CALIBRATION, CHAT_TEMPLATE, CHECKPOINTS, ENVIRONMENT, METRICS, SOURCES, TOKENIZER, step_of
from anyformer.errors import SpecError
from anyformer.parts.combine.lora import merged
from anyformer.training.recipes.recipe import Loaded
from anyformer.training.runs import checkpoint
from anyformer.training.runs.run_folder import RunFolder, locked, refuse_occupied

COPIED = (ENVIRONMENT, TOKENIZER, METRICS, CALIBRATION, CHAT_TEMPLATE)
"""Files that hold for both runs."""
PROBE_TOKENS = 16


@dataclass(frozen=True)
class MergeResult:
    """A run with merged weights."""

    folder: Path
    step: int
    """The step of the checkpoint whose weights were merged."""
    params_before: int
    params: int
    difference: float
    """Largest difference between the outputs of both models for random tokens."""


def merge_run(folder: Path, out: Path) -> MergeResult:
    """Writes a run with the best checkpoint of a run and without its updates."""
    recipe = checkpoint.run_recipe(folder)
    refuse_occupied(out)
    path = checkpoint.best_checkpoint(folder)
    model = checkpoint.trained_model(folder, recipe, "cpu", path)
    spec, tensors = merged(recipe.model, model)
    if spec == recipe.model:
        raise SpecError(f"{folder}: has no low-rank updates to merge: it was not trained with tune=lora.")
    plain = spec.build()
    checkpoint.load_weights(plain, tensors)
    step = step_of(path.name)
    assert step is not None
    with locked(out):
        try:
            for name in COPIED:
                if (folder / name).is_file():
                    shutil.copyfile(folder / name, out / name)
            state = {**checkpoint.load_state(path), "complete": True}
            checkpoint.save(out / CHECKPOINTS, step, {"model": tensors}, state)
            origins = {**checkpoint.read_facts(folder / SOURCES), "model": f"merged {folder}"}
            remaining = {key: origin for key, origin in origins.items() if not key.startswith("tune")}
            RunFolder(out).write_recipe(Loaded(out.name, replace(recipe, model=spec, tune=None), remaining))
        except BaseException:
            shutil.rmtree(out, ignore_errors=True)
            raise
    difference = _difference(model, plain.eval(), spec.input_stack.vocabulary)
    before, after = (sum(each.numel() for each in one.parameters()) for one in (model, plain))
    return MergeResult(out, step, before, after, difference)


@torch.no_grad()
def _difference(first: Model, second: Model, vocabulary: int) -> float:
    """Largest difference of the outputs of two models for the same random tokens."""
    tokens = torch.randint(vocabulary, (1, PROBE_TOKENS), generator=torch.Generator().manual_seed(0))

    def output(model: Model) -> Tensor:
        frame = Frame(memory=model.encode(tokens)) if model.needs_source else Frame()
        return model(tokens, frame).y

    return float((output(first) - output(second)).abs().max())
