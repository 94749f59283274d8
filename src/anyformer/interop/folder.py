"""A foreign model, read from a Hugging Face folder or a GGUF file: its spec, and its tensors under our names."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyformer.core import ModelSpec
from anyformer.disk import missing
from anyformer.errors import CheckpointError, SpecError
from anyformer.interop.family import Family, known_families
from anyformer.interop.gguf_header import SUFFIX, Header
from anyformer.interop.gguf_model import GGUFTensors, config_of, gguf_name
from anyformer.interop.mapping import Entry, to_ours, to_theirs
from anyformer.interop.reading import CONFIG, FLOATS, PICKLES, ForeignTensors, StoredTensors, read_json
from anyformer.interop.sentence_modules import MODULES, SentenceModules, read_modules
from anyformer.models.single import Single
from anyformer.parts.heads.hidden import Hidden
from anyformer.parts.heads.pooled import Pooled

_LISTED = 10
"""Maximum number of tensors that an error lists."""


@dataclass(frozen=True)
class PretrainedFolder:
    """A folder or a GGUF file whose config and tensors were checked against each other; tensors are read on demand."""

    path: Path
    config: Mapping[str, Any]
    """config.json, or the same made from the fields of a GGUF file."""
    family: Family
    spec: ModelSpec
    entries: tuple[Entry, ...]
    weights: ForeignTensors
    sentence: SentenceModules | None = None
    """What follows the model in a sentence-embedding folder, in place of its head."""
    spare: frozenset[str] = frozenset()
    """Stored tensors of a head that is not used."""

    @classmethod
    def open(cls, path: str | Path) -> "PretrainedFolder":
        path = Path(path)
        if path.suffix == SUFFIX and path.is_file():
            return cls._open_gguf(path)
        _refuse_other(path)
        config = read_json(path / CONFIG)
        family = _family_of(config, path)
        weights = StoredTensors(path)
        try:
            spec = family.spec(config, weights)
        except SpecError as error:
            raise _wrong_config(path / CONFIG, error) from None
        bare = not any(name.startswith(family.base) for name in weights)  # saved without a head
        entries, spare, sentence = _entries(family, spec, bare), frozenset[str](), read_modules(path)
        if sentence is not None:
            body = _body(path, spec, sentence)
            entries, complete = _entries(family, body, bare), entries
            spare = frozenset(name for entry in complete for name in entry.theirs)
            spec = replace(body, head=Pooled(pool=sentence.pool))
        folder = cls(path, config, family, spec, entries, weights, sentence, spare)
        folder._check()
        return folder

    @classmethod
    def _open_gguf(cls, path: Path) -> "PretrainedFolder":
        header = Header.read(path)
        config = config_of(header)
        family, weights = known_families()[config["model_type"]], GGUFTensors(header, config)
        try:
            spec = family.spec(config, ())
        except SpecError as error:
            raise _wrong_config(path, error) from None
        entries = (
            entry._replace(theirs=tuple(gguf_name(name) for name in entry.theirs)) for entry in family.tensors(spec)
        )
        file = cls(path, config, family, spec, tuple(entries), weights)
        file._check()
        return file

    @cached_property
    def shapes(self) -> Mapping[str, Tensor]:
        """Our tensors without values, on the meta device."""
        try:
            return self.spec.build(device="meta").state_dict()
        except SpecError as error:
            raise _wrong_config(self.path / CONFIG if self.path.is_dir() else self.path, error) from None

    def tensors(self) -> dict[str, Tensor]:
        """Our tensors, each in the precision in which it is stored."""
        return to_ours(self.entries, self.weights, self.shapes)

    @property
    def parameters(self) -> int:
        """Number of parameters, tied ones counted once."""
        return sum(tensor.numel() for tensor in self.shapes.values())

    def _check(self) -> None:
        """Raises CheckpointError unless the folder has exactly the tensors that its config describes."""
        family, needed = self.family, {name for entry in self.entries for name in entry.theirs}
        unused = {name for name in self.weights if family.is_unused(name)} | self.spare
        stored = {name for name in self.weights if name not in unused or name in needed}
        copies = {name: of for name, of in self._copies().items() if name in stored - needed}
        # names first: a model of many layers takes long to build, even without weights
        self._refuse([f"{name} is missing" for name in sorted(needed - stored)])
        self._refuse([f"{name} has no counterpart" for name in sorted(stored - needed - set(copies))])
        expected = to_theirs(self.entries, self.shapes)
        wrong = []
        for name, tensor in expected.items():
            facts = self.weights.facts[name]
            if facts.shape != tuple(tensor.shape):
                wrong.append(f"{name} has shape {facts.shape}, the config describes {tuple(tensor.shape)}")
            elif facts.dtype not in FLOATS:
                wrong.append(f"{name} holds {facts.dtype}, not one of {', '.join(FLOATS)}")
        self._refuse(wrong)
        for name, of in copies.items():
            if not torch.equal(self.weights[name], self.weights[of]):
                self._refuse([f"{name} differs from {of}, to which it is tied"])

    def _copies(self) -> Mapping[str, str]:
        """Tensors that must be equal to another one, by the names that this folder uses."""
        base = self.family.base
        bare = {name.removeprefix(base): of.removeprefix(base) for name, of in self.family.copies.items()}
        return {**self.family.copies, **{name: of for name, of in bare.items() if of in self.weights}}

    def _refuse(self, wrong: list[str]) -> None:
        if wrong:
            more = [f"... and {len(wrong) - _LISTED} more"] if len(wrong) > _LISTED else []
            raise CheckpointError("\n".join([f"{self.path}: the weights cannot be used:", *wrong[:_LISTED], *more]))


def _entries(family: Family, spec: ModelSpec, bare: bool) -> tuple[Entry, ...]:
    """The tensors of a spec; `bare`: by their names without the prefix of the body."""
    entries = tuple(family.tensors(spec))
    if not bare:
        return entries
    return tuple(
        entry._replace(theirs=tuple(name.removeprefix(family.base) for name in entry.theirs)) for entry in entries
    )


def _body(path: Path, spec: ModelSpec, sentence: SentenceModules) -> Single:
    """The model without its head, whose states are pooled."""
    if not isinstance(spec, Single):
        raise CheckpointError(f"{path / MODULES}: an encoder-decoder with a pooling cannot be imported.")
    if sentence.width not in (None, spec.dim):
        raise CheckpointError(f"{path / MODULES}: pools {sentence.width} channels, the model has {spec.dim}.")
    return replace(spec, head=Hidden())


def _wrong_config(file: Path, error: SpecError) -> CheckpointError:
    return CheckpointError("\n".join(f"{file}: {problem}" for problem in error.problems))


def _refuse_other(path: Path) -> None:
    """Raises CheckpointError if a path is not a folder with a config."""
    if path.suffix in PICKLES and path.is_file():
        raise CheckpointError(f"{path}: pickle is not loaded: it can run any code. Name a folder with safetensors.")
    if not path.is_dir():
        what = f"{path}: is not a folder." if path.exists() else missing(path)
        raise CheckpointError(f"{what} Name a Hugging Face folder, with {CONFIG} and safetensors, or a {SUFFIX} file.")


def _family_of(config: Mapping[str, Any], path: Path) -> Family:
    kind, families = config.get("model_type"), known_families()
    if not isinstance(kind, str) or kind not in families:
        names = ", ".join(sorted(families))
        raise CheckpointError(f"{path / CONFIG}: model_type={kind!r} cannot be imported. What can: {names}.")
    return families[kind]
