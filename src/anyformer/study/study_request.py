"""What a call of `compare` or `scale` asks for: where the study is described, and what the arguments change."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyformer.core import Spec
from anyformer.errors import check_strings
from anyformer.study.study import Arms, Study, read_study
from anyformer.study.study_folder import STUDY
from anyformer.study.study_pack import is_pack, unpack
from anyformer.training.recipes.python_values import (
    DataTarget,
    Sections,
    Target,
    check_paths,
    check_target,
    layers_of,
    with_preset,
)
from anyformer.training.recipes.toml_layers import TomlLayers
from anyformer.training.runs.session import RUNS


@dataclass(frozen=True)
class StudyRequest:
    """The source of a study, its changes, and its folder if it exists."""

    source: Target
    words: tuple[str, ...]
    """Overrides, as on the command line."""
    values: TomlLayers | None
    """The sections that were given as values."""
    models: Arms
    """Arms that were given as values."""
    folder: Path | None

    @classmethod
    def of(
        cls,
        target: Target | Arms,
        overrides: Sequence[str],
        settings: Mapping[str, Any],
        data: DataTarget | None,
        sections: Sections,
        out: str | Path | None,
        cache: str | Path | None,
    ) -> "StudyRequest":
        """Checks the arguments of a call. `settings`: key of [study] -> its value, or None."""
        check_strings("arms", settings["arms"])
        options = [f"study.{key}={json.dumps(value)}" for key, value in settings.items() if value not in (None, [])]
        words, other_sections = with_preset(tuple(overrides), sections)
        models: Arms = target if isinstance(target, Mapping) else {}
        for name, model in models.items():
            check_target(model, f"arm {name}")
        base: Target = next(iter(models.values()), "") if isinstance(target, Mapping) else target
        check_target(base)
        check_paths(out=out, cache=cache)
        source, folder = located(base, out)
        return cls(source, (*words, *options), layers_of(data, None, other_sections), models, folder)

    def study(self, *more: str, below: TomlLayers | None = None) -> Study:
        """The study, with more overrides; `below`: settings that everything else overrides."""
        return read_study(self.source, (*self.words, *more), self.values, self.models, below=below)


def located(target: Target, out: str | Path | None) -> tuple[Target, Path | None]:
    """What to read a study from, and its folder if it has one; a pack is unpacked into `out`."""
    if isinstance(target, Spec):
        return target, None
    if is_pack(Path(target)):
        target = unpack(Path(target), None if out is None else Path(out), RUNS)
    folder = Path(target)
    return (folder / STUDY, folder) if (folder / STUDY).is_file() else (target, None)
