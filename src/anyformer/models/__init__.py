"""Blocks, stacks and the three shapes of model."""

from anyformer.models.block import Block, Branch
from anyformer.models.decoder import Decoder
from anyformer.models.encoder import Encoder
from anyformer.models.encoder_decoder import EncoderDecoder
from anyformer.models.stack import Stack

__all__ = ["Block", "Branch", "Decoder", "Encoder", "EncoderDecoder", "Stack"]
