"""One stack with its embedding and its head: the common base of encoder and decoder.

tokens -> embedding (+ types) -> positions -> norm -> dropout -> stack -> norm -> head
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from anyformer.core.fields import Amount, Chance, Count, Range
from anyformer.core.frame import Frame, Memory, StackPlace, State, check_inputs
from anyformer.core.model import Embedding, EmbeddingSpec, Head, HeadSpec, Model, ModelSpec, StackFacts
from anyformer.core.module import Borrowed, InitSpec, Registry, Site, Table
from anyformer.core.part import Heads, NormSpec, Out, Part, PartSpec, Position, PositionSpec
from anyformer.errors import SpecError, at
from anyformer.models.exits import Exits, leave_early
from anyformer.models.stack import Stack
from anyformer.ops.devices import as_stream, is_empty
from anyformer.parts.embeddings.plain import Plain
from anyformer.parts.inits.normal import NormalInit


@dataclass(frozen=True, kw_only=True)
class Single(ModelSpec):
    """One stack with its embedding and head: encoder or decoder."""

    vocab: Count | None = None
    """Number of different tokens. In training it follows the tokenizer if it is not set."""
    dim: Annotated[int, Range(low=1, high=2**20, why="one square matrix of it has a trillion weights")]
    """Width of the stream."""
    stack: Stack
    """The layers."""
    max_len: Count = 2048
    """Longest sequence; a limit only for parts with a table of positions."""
    embedding: EmbeddingSpec = Plain()
    """How token ids become vectors."""
    types: Amount = 0
    """Number of token types (BERT's segment A and B); 0: none."""
    position: PositionSpec | None = None
    """Adds positions to the token vectors before the first layer."""
    entry_norm: NormSpec | None = None
    """Normalises the input of the first layer."""
    exit_norm: NormSpec | None = None
    """Normalises the output of the last layer."""
    exits: Exits | None = None
    """Early exits: the head can answer after inner layers too, and rows of which it is confident stop there."""
    dropout: Chance = 0.0
    """Dropout on the input of the first layer."""
    memory_dim: Count | None = None
    """Width of the encoder's output, for cross-attention; `dim` if not given."""
    init: InitSpec = NormalInit()
    """How fresh weights are drawn."""
    head: HeadSpec
    """The head behind the last layer."""

    @property
    def scheme(self) -> InitSpec:
        return self.init

    @property
    def stacks(self) -> Mapping[str, StackFacts]:
        return {self.kind: self}

    def with_head(self, head: HeadSpec) -> "Single":
        return replace(self, head=head)

    @property
    def memory_width(self) -> int:
        return self.memory_dim or self.dim

    @property
    def causal(self) -> bool:
        """True: no token sees what comes after it."""
        raise NotImplementedError

    def site(self) -> Site:
        """Where its parts are placed when it stands alone."""
        site = Site(dim=self.dim, stream_dim=self.dim, causal=self.causal, max_len=self.max_len)
        return replace(site, memory_dim=self.memory_width)

    @property
    def vocabulary(self) -> int:
        """Number of different tokens; raises SpecError if it is not set."""
        if self.vocab is None:
            raise SpecError(
                "vocab: is not set. In training it follows the data. To build the model without data, set it: "
                'model.with_("vocab", 300).'
            )
        return self.vocab

    def module(self) -> "SingleModel":
        site = self.site()
        model = SingleModel(self, site)
        model.shared = site.shared
        return model


def stacks_of(model: ModelSpec) -> dict[str, Single]:
    """The stacks of a model by name, each with all its fields."""
    stacks = dict[str, Single]()
    for name, stack in model.stacks.items():
        assert isinstance(stack, Single)
        stacks[name] = stack
    return stacks


def stack_modules_of(model: Model) -> "dict[str, SingleModel]":
    """The modules of a model's stacks by name; the only one of a single stack is called ""."""
    stacks = dict[str, SingleModel]()
    for name, stack in model.stack_models().items():
        assert isinstance(stack, SingleModel)
        stacks[name] = stack
    return stacks


class StateWithWords(NamedTuple):
    """The decoding state of a model whose embedding has a state of its own."""

    words: State
    stack: State


class SingleModel(Model):
    """One stack with its embedding and head. The embedding may be another model's, on loan."""

    shared: Registry | None

    def __init__(self, spec: Single, site: Site, loan: Borrowed[Embedding] | None = None):
        super().__init__()
        self.shared = None  # here and not on the class, where it would hide the module that takes its place
        self.dropout, self.width = spec.dropout, site.dim
        with at("embedding"):
            words = loan.module if loan else spec.embedding.build(site, spec.vocabulary)
            if site.causal and words.reads_ahead:
                raise SpecError("the encoder's embedding reads later tokens, so a decoder cannot share it.")
        self.embedding = None if loan else words
        self.words = Borrowed(words)
        self._build_entry(spec, replace(site, dim=self.words.module.width))
        with at("stack"):
            self.stack = spec.stack.build(site)
        self.keeps_inputs = any(isinstance(part, PartSpec) and part.needs_inputs for _, part in spec.stack.walk())
        with at("exit_norm"):
            self.exit_norm = spec.exit_norm.build(site) if spec.exit_norm else None
            if self.exit_norm is not None:
                self.exit_norm.layer_number = spec.stack.depth - 1
        with at("head"):
            self.head = spec.head.build(site, self.words, spec.vocabulary)
            self.head.continues_text = spec.decodes and spec.head.scores_words
        self.exits = spec.exits
        self.exit_layers = spec.exits.inner(spec.stack.depth) if spec.exits else range(0)
        if spec.exits:
            with at("exits"):
                self._place_exits(spec, spec.exits)

    def _place_exits(self, spec: Single, exits: Exits) -> None:
        exits.check_place(spec.stack.depth, spec.head, causal=spec.causal)
        if spec.stack.halting is not None or spec.stack.residual != "plain":
            raise SpecError("halting and reversible stacks have no output of each layer. Leave out one.")
        if any(isinstance(part, Part) and part.changes_length for part in self.stack.modules()):
            raise SpecError("a layer changes the length, but the head reads the outputs of all layers. Leave out one.")
        self.stack.keeps_layers = True

    def _build_entry(self, spec: Single, site: Site) -> None:
        self.types = Table(spec.types, site.dim, role="embed") if spec.types else None
        with at("position"):
            self.position = spec.position.build(site, Heads(1, site.dim)) if spec.position else Position()
            if spec.position and self.position.acts_inside() and not self.position.enters():
                raise SpecError(f"{spec.position.kind} acts inside attention: make it the `position` of that part.")
        with at("entry_norm"):
            self.entry_norm = spec.entry_norm.build(site) if spec.entry_norm else None

    def forward(
        self, tokens: Tensor, frame: Frame = Frame(), state: State | None = None, *, logits: bool = True
    ) -> Out:
        words, below = (state.words, state.stack) if isinstance(state, StateWithWords) else (None, state)
        x, words = self._embed(tokens, frame, words)
        out, frame = self._run(x, frame, below)
        if words is not None:
            out = out._replace(state=StateWithWords(words, out.state))
        if self.exit_layers:
            inner = [out.layers[number - 1] for number in self.exit_layers] if self.training else ()
            layers = tuple(self._normed(h, frame) for h in inner)
            out = Out(out.y, out.state, out.losses, out.frame, out.final, layers)
        return out.with_y(self.head(out.y, frame)) if logits else out

    def logits(self, h: Tensor, frame: Frame) -> Tensor:
        return self.head(h, frame)

    def output_head(self) -> Head:
        return self.head

    def stack_models(self) -> Mapping[str, Model]:
        return {"": self}

    def encode(self, tokens: Tensor, frame: Frame = Frame()) -> Memory:
        x, _ = self._embed(tokens, frame)
        out, after = self._run(x, frame, None)
        # A part that changed the length has left the tokens behind.
        layers = (x, *out.layers[:-1], out.y) if self.stack.keeps_layers and out.layers and out.frame is None else ()
        return Memory(
            x=out.y,
            valid=after.valid,
            segments=after.segments,
            layers=layers,
            final=out.final or None,
            inputs=x if out.frame is None else None,
            losses=out.losses,
        )

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        self.position.check_length(max_len)
        state = self.stack.init_state(batch, max_len, memory)
        words = self.words.module
        return StateWithWords(words.init_state(batch), state) if words.remembers else state

    def _run(self, x: Tensor, frame: Frame, state: State | None) -> tuple[Out, Frame]:
        """Hidden states, and the frame after the last layer."""
        placed = replace(frame, place=StackPlace(inputs=x)) if self.keeps_inputs else frame
        if self.exits is not None and self._may_leave(self.exits, x, frame, state):
            out = leave_early(self.stack.steps(), self.exit_layers, partial(self._confident, self.exits), x, placed)
        else:
            out = self.stack(x, placed, state)
        frame = out.frame or frame
        return out.with_y(self._normed(out.y, frame)), frame

    def _normed(self, h: Tensor, frame: Frame) -> Tensor:
        return h if self.exit_norm is None else self.exit_norm(h, frame)

    def _may_leave(self, exits: Exits, x: Tensor, frame: Frame, state: State | None) -> bool:
        """True if rows may leave the batch in this call: with a state or a memory each belongs to rows elsewhere."""
        here = state is None and frame.memory is None and not is_empty(x)
        return here and exits.threshold < 1.0 and not self.training

    def _confident(self, exits: Exits, h: Tensor, frame: Frame) -> Tensor:
        """The rows that leave with these outputs of an inner layer."""
        return exits.confident(self.head(self._normed(h, frame), frame), frame)

    def _embed(self, tokens: Tensor, frame: Frame, state: State | None = None) -> tuple[Tensor, State | None]:
        """The input of the first layer, and the state of the embedding after these tokens; `state`: the one before."""
        check_inputs(tokens, frame)
        words = self.words.module
        x, state = (words(tokens, frame), None) if state is None else words.continued(tokens, frame, state)
        if self.types is not None:
            x = x + self.types(torch.zeros_like(tokens) if frame.types is None else frame.types)
        x = self.position.embed(x, frame.positions_for(x))
        x = x if self.entry_norm is None else self.entry_norm(x, frame)
        return as_stream(words.lift(torch.dropout(x, self.dropout, self.training))), state
