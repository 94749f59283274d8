"""An encoder, and a decoder whose cross branches attend to its output: translation, summaries, T5."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from anyformer.core import (
    Frame,
    Head,
    HeadSpec,
    InitSpec,
    Memory,
    Model,
    ModelSpec,
    Out,
    PartSpec,
    Registry,
    StackFacts,
    State,
)
from anyformer.errors import SpecError, at
from anyformer.models.decoder import Decoder
from anyformer.models.encoder import Encoder
from anyformer.models.single import SingleModel
from anyformer.parts.heads.hidden import Hidden
from anyformer.parts.inits.normal import NormalInit


@dataclass(frozen=True, kw_only=True)
class EncoderDecoder(ModelSpec, kind="encoder_decoder"):
    """Reads a source in both directions, then writes a target left to right."""

    needs_source = True
    stack_paths: ClassVar[tuple[str, ...]] = ("encoder", "decoder")

    encoder: Encoder
    """The reading half."""
    decoder: Decoder
    """The writing half; its `cross` branches attend to the encoder's output."""
    inputs: Literal["shared", "separate"] = "shared"
    """One embedding for source and target, or one each. The output is tied by the decoder's head."""

    def check(self) -> None:
        if self.encoder.init not in (NormalInit(), self.decoder.init):
            raise SpecError("encoder.init: one scheme fills the whole model, the decoder's. Set decoder.init alone.")
        if self.decoder.memory_dim not in (None, self.encoder.dim):
            raise SpecError(f"decoder.memory_dim is the encoder's dim={self.encoder.dim} here; leave it out.")
        if self.encoder.head != Hidden():
            raise SpecError("encoder.head would never be used: the decoder attends to the hidden states. Leave it out.")
        if self.encoder.exits is not None:
            raise SpecError("encoder.exits would never be used: the encoder has no head of its own. Leave them out.")
        if self.inputs == "shared":
            for key in ("vocab", "dim", "embedding"):
                source, target = getattr(self.encoder, key), getattr(self.decoder, key)
                if source != target and None not in (source, target):  # a vocabulary may still be open
                    raise SpecError(
                        f"shared inputs need the same {key} on both sides, got {source} and {target}. "
                        f'Make them equal, or set inputs = "separate".'
                    )

    @property
    def stacks(self) -> Mapping[str, StackFacts]:
        return {"encoder": self.encoder, "decoder": self.decoder}

    def with_head(self, head: HeadSpec) -> "EncoderDecoder":
        return replace(self, decoder=replace(self.decoder, head=head))

    @property
    def scheme(self) -> InitSpec:
        return self.decoder.init

    def module(self) -> "EncoderDecoderModel":
        if None in (self.encoder.vocab, self.decoder.vocab):
            raise SpecError(
                "vocab: is not set on both sides. In training it follows the data. To build the model without data, "
                'set both: model.with_("encoder.vocab", 300).with_("decoder.vocab", 300).'
            )
        return EncoderDecoderModel(self)


class EncoderDecoderModel(Model):
    needs_source = True

    def __init__(self, spec: EncoderDecoder):
        super().__init__()
        self.shared = Registry()
        source = replace(spec.encoder.site(), stack="encoder", shared=self.shared)
        with at("encoder"):
            self.encoder = SingleModel(spec.encoder, source)
        parts = (part for _, part in spec.decoder.stack.walk() if isinstance(part, PartSpec))
        self.encoder.stack.keeps_layers = any(part.needs_source_layers for part in parts)
        final = self.encoder.stack.final_widths
        target = replace(spec.decoder.site(), stack="decoder", shared=self.shared)
        target = replace(target, memory_dim=spec.encoder.dim, final_widths=final)
        with at("decoder"):
            words = self.encoder.words if spec.inputs == "shared" else None
            self.decoder = SingleModel(spec.decoder, target, words)
        self.width = self.decoder.width

    def encode(self, tokens: Tensor, frame: Frame = Frame()) -> Memory:
        return self.encoder.encode(tokens, frame)

    def forward(
        self, tokens: Tensor, frame: Frame = Frame(), state: State | None = None, *, logits: bool = True
    ) -> Out:
        return self.decoder(tokens, frame, state, logits=logits)

    def logits(self, h: Tensor, frame: Frame) -> Tensor:
        return self.decoder.logits(h, frame)

    def output_head(self) -> Head:
        return self.decoder.output_head()

    def stack_models(self) -> Mapping[str, Model]:
        return {"encoder": self.encoder, "decoder": self.decoder}

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        return self.decoder.init_state(batch, max_len, memory)
