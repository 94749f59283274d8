"""The names of `anyformer.models`, which are loaded on first use."""

from anyformer.models.decoder import Decoder as Decoder
from anyformer.models.encoder import Encoder as Encoder
from anyformer.models.encoder_decoder import EncoderDecoder as EncoderDecoder
from anyformer.models.stack import Block as Block
from anyformer.models.stack import Branch as Branch
from anyformer.models.stack import Stack as Stack
