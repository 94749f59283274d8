"""Weights to start from: those of a run, or of a Hugging Face folder or a GGUF file, which are read as they are."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from anyformer.core import ModelSpec
from anyformer.core.plain_data import Tree
from anyformer.data.record import SourceSpec
from anyformer.disk import RECIPE, TOKENIZER, missing
from anyformer.errors import CheckpointError, SpecError
from anyformer.interop.folder import PretrainedFolder
from anyformer.interop.gguf_header import SUFFIX
from anyformer.interop.reading import CONFIG
from anyformer.interop.tokenizers.gguf import GGUF
from anyformer.interop.tokens import FILE, read_chat_template, roles_of
from anyformer.training.runs.checkpoint import best_checkpoint, made_from, run_recipe, trained_model


@dataclass(frozen=True)
class StartingPoint:
    """A model with its weights and its tokenizer."""

    path: Path
    model: ModelSpec
    folder: PretrainedFolder | None = None
    """The Hugging Face folder or the GGUF file; None if the weights are those of a run."""

    @classmethod
    def open(cls, path: str | Path) -> "StartingPoint":
        path = Path(path)
        if (path / RECIPE).is_file():
            model = run_recipe(path).model
            if not model.learns:
                source = made_from(path) or "RUN, the run that it was made from"
                text = f"weights of kind {model.kind!r} cannot be trained. Start from init_from={source}"
                raise SpecError(f"init_from={path}: {text}")
            return cls(path, model)
        if (path / CONFIG).is_file() or (path.suffix == SUFFIX and path.is_file()):
            try:
                folder = PretrainedFolder.open(path)
            except CheckpointError as error:
                raise CheckpointError(f"init_from={path}: {error}") from None
            return cls(path, folder.spec, folder)
        if path.is_dir():
            what = f"neither a run folder nor a Hugging Face folder: {RECIPE} or {CONFIG} is missing."
        elif path.exists():
            what = f"neither a folder nor a {SUFFIX} file."
        else:
            raise CheckpointError(f"init_from={missing(path)}")
        raise CheckpointError(f"init_from={path}: {what}")

    def tensors(self) -> tuple[Mapping[str, Tensor], str]:
        """The tensors by name, and where they come from: the name of a checkpoint, of the folder or of the file."""
        if self.folder is not None:
            return self.folder.tensors(), self.path.name
        checkpoint = best_checkpoint(self.path)
        return trained_model(self.path, run_recipe(self.path), "cpu", checkpoint).state_dict(), checkpoint.name

    def tokenizer(self) -> Tree:
        """The tokenizer's section of a recipe. No token is added, since the model has no row for it."""
        if self.folder is None:
            return {"kind": "file", "path": str(self.path / TOKENIZER), "sentinels": 0}
        if self.path.is_file():
            return {"kind": GGUF.kind, "path": str(self.path), "sentinels": 0}
        if not (self.path / FILE).is_file():
            raise SpecError(
                f"init_from={self.path}: has no {FILE}, so there is no tokenizer for these data. Name one: "
                f"data.tokenizer.kind=file data.tokenizer.path=FILE"
            )
        roles = roles_of(self.path, self.folder.config, self.folder.spec)
        return {"kind": "file", "path": str(self.path / FILE), "sentinels": 0, "roles": roles}

    def chat_template(self) -> str | None:
        """The template that lays out conversations for this model; None if it has none."""
        return read_chat_template(self.path)

    def laid_out(self, source: SourceSpec) -> SourceSpec:
        """The source, with the chat template of this model if it reads conversations and names no template."""
        template = self.chat_template() if source.chat_template is not None else None
        return source if template is None or "template" in source.to_dict() else source.with_("template", template)
