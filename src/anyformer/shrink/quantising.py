"""`quantise`: the model of a run with int8 weights, as a run folder whose file is smaller."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from anyformer.core import Model
from anyformer.errors import SpecError
from anyformer.models.quantised import Quantised
from anyformer.ops.int8_linear import Activations, Int8Linear, quantise_matrix
from anyformer.run import Run, opened
from anyformer.shrink.run_writing import write_run
from anyformer.training.runs.checkpoint import load_weights


def quantise(run: Run | str | Path, out: str | Path, activations: Activations = "int8") -> Run:
    """Quantises the weights of all matrices of a run's model into a new run folder."""
    run, out = opened(run), Path(out)
    refuse_quantised(run)
    spec = Quantised(model=run.recipe.model, activations=activations)
    model = quantised_model(spec, run.model().state_dict())
    return write_run(run, out, spec, model, {"how": "quantise", "weights": "int8", "activations": activations})


def quantised_model(spec: Quantised, tensors: Mapping[str, Tensor]) -> Model:
    """The quantised model with the weights of the model that it is made from."""
    model, stored = spec.build().eval(), dict(tensors)
    for name, module in model.named_modules():
        if isinstance(module, Int8Linear):
            matrix = quantise_matrix(stored.pop(f"{name}.weight"))
            stored |= {f"{name}.values": matrix.values, f"{name}.scales": matrix.scales}
    load_weights(model, stored)
    return model


def refuse_quantised(run: Run) -> None:
    """Raises SpecError if the weights of a run are quantised already."""
    if not run.recipe.model.learns:
        raise SpecError(f"{run.folder}: is quantised already. Shrink the run that it was made from.")
