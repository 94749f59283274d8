"""Writes src/anyformer/__init__.pyi, the list of public names: `python tools/exports.py`.

Every kind is public under the name of its class. The package reads the stub to load names lazily, and type checkers
read it as it is.
"""

import inspect
from pathlib import Path

from anyformer.core.discovery import discover
from anyformer.core.spec import Spec

STUB = Path(__file__).parents[1] / "src" / "anyformer" / "__init__.pyi"
NAMES = {
    "anyformer.core": (
        "And", "Causal", "Cost", "CostTree", "Frame", "Full", "Marks", "MaskRule", "Memory", "Model", "ModelSpec", "Or",
        "Out", "Part", "PartSpec", "Segment", "Site", "Spec", "Work", "capture", "cost", "decode", "detach", "fork",
        "nbytes", "reorder",
    ),
    "anyformer.data.preparation.pipeline": ("DataSpec", "prepare"),
    "anyformer.data.sources.record_file": ("write_records",),
    "anyformer.errors": (
        "AnyformerError", "CheckpointError", "DataError", "ResourceError", "SpecError", "TrainingError",
    ),
    "anyformer.exporting.exporter": ("export",),
    "anyformer.generation.beam.beam_search": ("Beam",),
    "anyformer.generation.engine": ("Engine", "Request", "generate"),
    "anyformer.generation.ensemble": ("Ensemble",),
    "anyformer.generation.few_shot": ("FewShot",),
    "anyformer.inference.text_generator": ("GenerationConfig",),
    "anyformer.models": ("Block", "Branch", "Stack"),
    "anyformer.parts.mixers.torch_module": ("torch_part",),
    "anyformer.pretrained": ("from_pretrained",),
    "anyformer.run": ("Run", "train"),
    "anyformer.shrink.averaging": ("average_checkpoints", "average_runs"),
    "anyformer.shrink.distilling": ("StudentSettings", "distil"),
    "anyformer.shrink.quantising": ("quantise",),
    "anyformer.shrink.shrinking": ("PruneSettings", "prune"),
    "anyformer.study": ("Listener", "Results", "Scaled", "StudySpec", "Tuning", "compare", "scale"),
    "anyformer.training": ("Recipe", "Step", "Trainer", "Watcher", "load"),
    "anyformer.training.recipes.recipe": ("CheckpointSpec", "EvaluateSpec", "LogSpec", "SampleSpec", "TrainSpec"),
}  # fmt: skip
HEAD = '''"""The public names of anyformer. Written by `python tools/exports.py`; do not edit."""

'''


def kinds() -> dict[str, str]:
    """Class name -> module, for every kind of the package."""
    discover()
    classes = {cls for family in Spec.__subclasses__() for cls in family.kinds.values()}
    return {cls.__name__: cls.__module__ for cls in classes if cls.__module__.startswith("anyformer.")}


def stub() -> str:
    """The text of the stub."""
    homes = {name: module for module, names in NAMES.items() for name in names}
    homes |= {name: module for name, module in kinds().items() if name not in homes}
    lines = [f"from {module} import {name} as {name}" for module, name in sorted((m, n) for n, m in homes.items())]
    names = "".join(f'    "{name}",\n' for name in sorted(homes))
    return f"{HEAD}{chr(10).join(lines)}\n\n__version__: str\n__all__ = [\n{names}]\n"


def main() -> None:
    STUB.write_text(stub(), encoding="utf-8")
    print(f"wrote {STUB.name}: {len(inspect.cleandoc(stub()).splitlines())} lines")


if __name__ == "__main__":
    main()
