"""What is asked of the halves of an encoder-decoder: their vocabularies, and a part that reads the source."""

import pytest
import torch

from anyformer.core import Frame
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Decoder, Encoder, EncoderDecoder, Stack
from anyformer.parts.combine.cross import Cross
from anyformer.parts.mixers.attention import Attention
from anyformer.training import load
from anyformer.training.recipes.toml_layers import preset_names
from anyformer.training.runs.session import remarks_on_model

LOOK = Branch(part=Attention(heads=2))
READ = Stack(blocks={"layer": Block(branches=(LOOK,))}, depth=1)
WRITE = Stack(blocks={"layer": Block(branches=(LOOK, Branch(part=Cross(part=Attention(heads=2)))))}, depth=1)
PAIR = EncoderDecoder(encoder=Encoder(dim=8, stack=READ), decoder=Decoder(dim=8, stack=WRITE))


def test_the_vocabularies_of_an_encoder_decoder_are_set_one_after_the_other() -> None:
    module = PAIR.with_("encoder.vocab", 30).with_("decoder.vocab", 30).build(seed=0)
    tokens = torch.tensor([[1, 2, 3]])
    assert module(tokens, Frame(memory=module.encode(tokens))).y.shape == (1, 3, 30)


def test_a_missing_vocabulary_of_an_encoder_decoder_is_named_with_both_keys() -> None:
    advice = r'set both: model\.with_\("encoder\.vocab", 300\)\.with_\("decoder\.vocab", 300\)'
    for model in (PAIR, PAIR.with_("decoder.vocab", 30)):
        with pytest.raises(SpecError, match=advice):
            model.build(seed=0)


def test_an_encoder_that_no_part_of_the_decoder_reads_is_remarked_on() -> None:
    blind = EncoderDecoder(encoder=Encoder(dim=8, stack=READ), decoder=Decoder(dim=8, stack=READ))
    (remark,) = remarks_on_model(blind)
    assert remark.startswith("no part of the decoder reads the encoder") and "Cross(part=Attention(...))" in remark
    readers = [name for name in preset_names() if load(name).needs_source]
    assert len(readers) > 10 and not any(remark for name in readers for remark in remarks_on_model(load(name)))


def test_the_vocabulary_of_an_encoder_decoder_is_looked_for_in_its_halves() -> None:
    with pytest.raises(SpecError, match=r"vocab belongs to encoder or decoder: write encoder\.vocab or decoder\.vocab"):
        PAIR.with_("vocab", 30)
