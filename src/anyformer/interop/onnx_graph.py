"""A model as an ONNX graph, by torch's exporter, checked by onnxruntime at several lengths and batches.

An encoder reads a batch at once: input_ids, attention_mask -> its outputs. A decoder continues from a cache, which is a
list of tensors with the batch first and a fixed size, so one graph serves the prompt and every later token:

input_ids [b t], position_ids [b t], attention_mask [b t], past.0 .. past.n -> logits [b t v], present.0 .. present.n
"""

import contextlib
import io
import logging
import re
import shutil
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.export import Dim
from torch.utils._pytree import tree_flatten, tree_unflatten

from anyformer.core import Frame, Model, ModelSpec, PartSpec
from anyformer.errors import SpecError
from anyformer.interop.agreement import Agreement
from anyformer.models.single import Single

FILE, CACHE = "model.onnx", "cache.safetensors"
PACKAGES = ("onnx", "onnxruntime", "onnxscript")
TOKENS, POSITIONS, MASK, TYPES = "input_ids", "position_ids", "attention_mask", "token_type_ids"
BATCH, LENGTH = 2, 5
"""Sizes of the example that is traced. Neither is 1, which the exporter would take for a constant."""
BATCHES = (1, 2, 3)
LATER_TOKENS = 3
"""Tokens that a check of a decoder reads one by one behind its prompt."""


class ReadingGraph(nn.Module):
    """An encoder with positional inputs."""

    def __init__(self, model: Model):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        return self.model(tokens, Frame(valid=mask.bool(), types=types)).y


class WritingGraph(nn.Module):
    """A decoder with positional inputs, its cache as a flat list."""

    def __init__(self, model: Model, tree: Any):
        super().__init__()
        self.model, self.tree = model, tree

    def forward(self, tokens: Tensor, positions: Tensor, mask: Tensor, past: list[Tensor]) -> tuple[Tensor, ...]:
        # the model writes into its state, and the inputs of a graph are not written to
        state = tree_unflatten([leaf.clone() for leaf in past], self.tree)
        out = self.model(tokens, Frame(positions=positions, valid=mask.bool()), state)
        return (out.y, *tree_flatten(out.state)[0])


@dataclass(frozen=True)
class OnnxGraph:
    """A model that is to be exported: its module, the names of its inputs and outputs, an example."""

    model: Model
    spec: Single
    step: bool = False
    """True: the graph reads one token at a time, because a recurrence is unrolled over the length."""

    @property
    def kind(self) -> str:
        """The graph in words."""
        if not self.writes:
            return "encoder graph"
        return "decoder graph with cache, one token at a time" if self.step else "decoder graph with cache"

    @property
    def writes(self) -> bool:
        """True if it continues from a cache."""
        return self.spec.decodes and self.spec.head.scores_words

    @cached_property
    def module(self) -> nn.Module:
        if not self.writes:
            return ReadingGraph(self.model)
        return WritingGraph(self.model, tree_flatten(self.model.init_state(1, self.spec.max_len))[1])

    def cache(self, batch: int) -> list[Tensor]:
        """An empty cache."""
        leaves: list[Tensor] = tree_flatten(self.model.init_state(batch, self.spec.max_len))[0]
        return [leaf.contiguous() for leaf in leaves]

    def first_values(self) -> dict[str, Tensor]:
        """The tensors of an empty cache that are not zero, for one row."""
        return {f"past.{n}": leaf for n, leaf in enumerate(self.cache(1) if self.writes else ()) if leaf.any()}

    @property
    def inputs(self) -> list[str]:
        if self.writes:
            return [TOKENS, POSITIONS, MASK, *(f"past.{n}" for n in range(len(self.cache(1))))]
        return [TOKENS, MASK, *([TYPES] if self.spec.types else [])]

    @property
    def outputs(self) -> list[str]:
        if self.writes:
            return ["logits", *(f"present.{n}" for n in range(len(self.cache(1))))]
        head = self.spec.head
        return ["logits" if head.scores_words or head.outcomes else "embeddings" if head.pools else "last_hidden_state"]

    def described(self) -> tuple[str, ...]:
        """The inputs and outputs in words, for a model card."""
        length = "1" if self.step else f"length up to {self.spec.max_len:,}"
        tokens = f"int64 [batch, {length}]"
        lines = [f"**{TOKENS}**: {tokens}", f"**{MASK}**: {tokens}; 0 for padding"]
        if not self.writes:
            types = [f"**{TYPES}**: {tokens}; 0 for a single text"] if self.spec.types else []
            return (*lines, *types, f"**{self.outputs[0]}**: float32, the output")
        number = len(self.cache(1)) - 1
        others = f" (of {', '.join(self.first_values())}: {CACHE})" if self.first_values() else ""
        return (
            *lines,
            f"**{POSITIONS}**: {tokens}; the place of each token in its text, from 0",
            f"**past.0** to **past.{number}**: the cache; zeros at the beginning{others}, then present.0 to "
            f"present.{number} of the call before",
            "**logits**: float32 [batch, length, vocabulary]",
        )

    def arguments(self, tokens: Tensor, mask: Tensor, start: int = 0, past: list[Tensor] | None = None) -> list[Any]:
        """The inputs for tokens [b t] whose first position is `start`; a cache is empty if not given."""
        if not self.writes:
            return [tokens, mask, *([torch.zeros_like(tokens)] if self.spec.types else [])]
        places = torch.arange(start, start + tokens.shape[1]).expand_as(tokens).contiguous()
        return [tokens, places, mask, self.cache(len(tokens)) if past is None else past]

    def shapes(self) -> list[Any]:
        """The dimensions of each input that may differ from the example."""
        batch, length = Dim("batch"), Dim("length", max=self.spec.max_len)
        rows = {0: batch} if self.step else {0: batch, 1: length}
        if not self.writes:
            return [rows for _ in self.inputs]
        return [rows, rows, rows, [{0: batch} for _ in self.cache(1)]]


def write_graph(folder: Path, spec: ModelSpec, model: Model) -> tuple[OnnxGraph, Agreement]:
    """Writes model.onnx and compares it with the model, at lengths 1, 2, an odd one and the longest, with padding."""
    graph, program = _traced(refuse_kind(spec), model)
    program.save(folder / FILE)
    if values := graph.first_values():
        save_file(values, folder / CACHE)
        shutil.copymode(folder / FILE, folder / CACHE)  # safetensors creates files readable by the owner only
    return graph, check_graph(folder / FILE, graph)


def refuse_kind(spec: ModelSpec) -> Single:
    """The spec, if ONNX export supports its kind; SpecError names the kind otherwise, or a package that is missing."""
    if not isinstance(spec, Single):
        raise SpecError(
            f"model.kind={spec.kind}: two stacks that call each other are not exported to ONNX. "
            f"Encoders, classifiers, embedders and decoders are."
        )
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise SpecError(f"--to onnx needs {', '.join(missing)}: pip install 'anyformer[onnx]'.")
    return spec


def _traced(spec: Single, model: Model) -> tuple[OnnxGraph, Any]:
    """The graph and its ONNX program; a decoder whose length must be fixed reads one token at a time."""
    graphs = [OnnxGraph(model, spec)]
    if graphs[0].writes:
        graphs.append(OnnxGraph(model, spec, step=True))
    reasons = []
    for graph in graphs:
        length = 1 if graph.step else min(LENGTH, spec.max_len)
        tokens = torch.zeros(BATCH, length, dtype=torch.long)
        arguments = tuple(graph.arguments(tokens, torch.ones_like(tokens)))
        try:
            with torch.no_grad(), _quiet():
                shapes = tuple(graph.shapes())
                program = torch.export.export(graph.module.eval(), arguments, dynamic_shapes=shapes, strict=False)
                names: Any = {"input_names": graph.inputs, "output_names": graph.outputs}
                return graph, torch.onnx.export(program, dynamo=True, verbose=False, **names)
        except Exception as error:  # the exporter raises all kinds of errors for what it cannot translate
            reasons.append(_reason(error))
    kinds = ", ".join(sorted({part.kind for _, part in spec.walk() if isinstance(part, PartSpec)}))
    raise SpecError(f"torch cannot export this model to ONNX (its parts: {kinds}): {reasons[-1]}")


def _reason(error: Exception) -> str:
    """The first line of the first cause of an error, shortened."""
    if "Constraints violated" in str(error):
        return "its computation is unrolled over the length, so that no graph reads other lengths."
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    line = re.sub(r"<OpOverload\(op='([\w.]+)'.*?\)>", r"\1", (lines or [type(cause).__name__])[0])
    return line[:200]


def check_graph(file: Path, graph: OnnxGraph) -> Agreement:
    """The largest difference between onnxruntime and the model; CheckpointError if it is larger than rounding."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    longest, rng = graph.spec.max_len, torch.Generator().manual_seed(0)
    results = []
    for number, length in enumerate(sorted({1, 2, min(7, longest), longest})):
        batch = BATCHES[number % len(BATCHES)] if length < longest else 1
        tokens = torch.randint(graph.spec.vocabulary, (batch, length), generator=rng)
        mask = torch.ones_like(tokens)
        if length > 2 and batch > 1:
            mask[1:, length // 2 :] = 0  # padding
        results.append(_compared(session, graph, tokens, mask))
    consequence = "nothing was written. Please report it."
    return max(results).checked("the outputs of onnxruntime", "the run", consequence)


@torch.no_grad()
def _compared(session: Any, graph: OnnxGraph, tokens: Tensor, mask: Tensor) -> Agreement:
    expected = graph.model(tokens, Frame(valid=mask.bool())).y
    if graph.writes:
        # a prompt, then the rest token by token, so that the cache is compared as well
        prompt = 1 if graph.step else max(1, tokens.shape[1] - LATER_TOKENS)
        pieces = [(0, prompt), *((place, place + 1) for place in range(prompt, tokens.shape[1]))]
    else:
        pieces = [(0, tokens.shape[1])]
    outputs, past = [], None
    for start, end in pieces:
        arguments = graph.arguments(tokens[:, start:end], mask[:, start:end], start, past)
        results = run_session(session, arguments)
        outputs.append(results[0])
        past = results[1:] or None
    actual = torch.cat(outputs, 1) if expected.dim() == 3 else outputs[0]
    if expected.dim() == 3:
        expected, actual = expected[mask.bool()], actual[mask.bool()]
    return Agreement.between(actual, expected)


def run_session(session: Any, arguments: Sequence[Any]) -> list[Tensor]:
    """The outputs of a session of onnxruntime for positional inputs, of which the last may be a list."""
    flat = tree_flatten(list(arguments))[0]
    names = [each.name for each in session.get_inputs()]
    feed = {name: tensor.numpy() for name, tensor in zip(names, flat, strict=True)}
    return [torch.from_numpy(each) for each in session.run(None, feed)]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences the exporter, which prints its progress and warns about packages that are not needed."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "torch.export")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
