"""The name of a token alone, as views and candidates show it."""

from tests.data.test_tokenizers import byte_level, trained

from anyformer.data.tokenizers.tokenizer import TokenizerSpec


@byte_level
def test_a_part_of_a_character_is_named_by_its_bytes(spec: TokenizerSpec) -> None:
    tokenizer = trained(spec)
    names = "".join(map(tokenizer.name, tokenizer.encode("of \U0001f600")))
    assert names == "of <0xF0><0x9F><0x98><0x80>"
    assert tokenizer.name(tokenizer.words.bos) == tokenizer.decode([tokenizer.words.bos], special="show")
