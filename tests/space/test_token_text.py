"""Tokens as readable text: no character is lost in any kind of vocabulary."""

import re
from functools import cache
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers

import rheoscope as rs
from rheoscope.covers.reversed_attention.analysis import target_id
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer
from rheoscope.models.vocabulary import train_bpe
from rheoscope.space.token_text import _decode_bytewise, decode_tokens
from tests.texts import any_text

BYTES = re.compile("⟨[0-9a-f]{2}⟩")


def sentencepiece_tokenizer() -> Tokenizer:
    """A vocabulary in the style of SentencePiece: spaces are markers, and text without a token becomes bytes."""
    merges = [("▁", "n"), ("▁n", "a"), ("▁na", "m"), ("▁nam", "e"), ("▁name", "d")]
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁named", *(a + b for a, b in merges)]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    return tokenizer


@cache
def model_with(tokenizer: str) -> Any:
    new_tokenizer = (
        sentencepiece_tokenizer() if tokenizer == "pieces" else train_bpe(["named na"], 260, ["<|endoftext|>"])
    )
    torch.manual_seed(0)
    config = Config(vocabulary=new_tokenizer.get_vocab_size(), width=8, depth=1, heads=1, hidden=8)
    return rs.load(Transformer(config), tokenizer=new_tokenizer)


def test_marker_is_a_space_and_bytes_become_characters() -> None:
    model = model_with("pieces")
    tokens = model.trace("named named 中!").tokens
    assert tokens == [" named", " named", " ", "⟨e4⟩", "⟨b8⟩", "中", "!"]
    assert model.token_strings(model.encode("中")) == [" ", "⟨e4⟩", "⟨b8⟩", "⟨ad⟩"]


def test_target_is_found_with_and_without_its_space() -> None:
    model = model_with("pieces")
    expected = model.tokenizer.token_to_id("▁named")
    assert target_id(model, "named") == target_id(model, " named") == expected


@given(st.lists(st.one_of(any_text(max_size=2).map(lambda text: text.encode(errors="replace")), st.binary(max_size=3))))
def test_fast_decoding_equals_bytewise_decoding(tokens: list[bytes]) -> None:
    assert decode_tokens(tokens) == _decode_bytewise(tokens)


@given(st.text(st.characters(exclude_characters="⟨⟩", exclude_categories=["Cs"]), min_size=1, max_size=12))
def test_joined_tokens_equal_the_text(text: str) -> None:
    model = model_with("bytes")
    tokens = model.token_strings_in_text(model.encode(text))
    assert BYTES.sub("", "".join(tokens)) == text


@given(st.lists(st.binary(max_size=4), max_size=8))
def test_every_byte_appears_once(tokens: list[bytes]) -> None:
    """Incomplete characters appear as bytes in the token that holds them."""
    texts = decode_tokens(tokens)
    assert len(texts) == len(tokens)
    complete_text = b"".join(tokens).decode(errors="ignore")
    assert BYTES.sub("", "".join(texts)) == BYTES.sub("", complete_text)
    assert all(bool(text) == bool(token) for text, token in zip(texts, tokens, strict=True))
