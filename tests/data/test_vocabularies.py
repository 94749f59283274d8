"""The sizes of vocabularies, and which pieces they keep."""

import pytest

from anyformer.data.tokenizers.bpe import BPE
from anyformer.data.tokenizers.byte import Byte
from anyformer.data.tokenizers.tokenizer import TokenizerSpec
from anyformer.data.tokenizers.unigram import _settled


def test_bytes_that_a_unigram_model_never_saw_share_the_lowest_score() -> None:
    pieces = [("a", -20.0), ("b", -19.98), ("c", -19.97), ("ab", -19.99), ("d", -3.0)]
    assert _settled(pieces, 5) == [("d", -3.0), ("c", -19.97), ("a", -20.0), ("b", -20.0), ("ab", -19.99)]
    assert _settled(pieces, 4)[-1] == ("b", -20.0)


@pytest.mark.parametrize("sentinels", [0, 3])
def test_the_vocabulary_of_bytes_has_the_size_that_was_announced(sentinels: int) -> None:
    spec = Byte(sentinels=sentinels)
    assert spec.likely_size == spec.train([]).words.size


@pytest.mark.parametrize("spec", [Byte(), BPE(size=400)], ids=lambda spec: spec.kind)
def test_a_part_of_a_character_is_named_by_its_bytes(spec: TokenizerSpec) -> None:
    tokenizer = spec.train(["a text of letters"])
    names = [tokenizer.name(index) for index in tokenizer.encode("of \U0001f600")]
    assert "".join(names) == "of <0xF0><0x9F><0x98><0x80>"
    assert tokenizer.name(tokenizer.words.bos) == tokenizer.decode([tokenizer.words.bos], special="show")
