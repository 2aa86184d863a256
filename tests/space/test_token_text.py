"""Tokens as people read them: nothing of a text is lost, whatever alphabet its vocabulary is written in."""

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
from rheoscope.models.vocabulary import byte_pairs
from rheoscope.space.token_text import _spread, in_a_text
from tests.texts import any_text

BYTES = re.compile("⟨[0-9a-f]{2}⟩")


def sentence_pieces() -> Tokenizer:
    """A vocabulary as SentencePiece makes them: spaces are markers, what has no token is written in bytes."""
    merges = [("▁", "n"), ("▁n", "a"), ("▁na", "m"), ("▁nam", "e"), ("▁name", "d")]
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁named", *(a + b for a, b in merges)]
    vocabulary = {piece: at for at, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    return tokenizer


@cache
def reading(tokenizer: str) -> Any:
    made = sentence_pieces() if tokenizer == "pieces" else byte_pairs(["named na"], 260, ["<|endoftext|>"])
    torch.manual_seed(0)
    config = Config(vocabulary=made.get_vocab_size(), width=8, depth=1, heads=1, hidden=8)
    return rs.load(Transformer(config), tokenizer=made)


def test_a_marker_is_a_space_and_bytes_become_characters() -> None:
    model = reading("pieces")
    tokens = model.trace("named named 中!").tokens
    assert tokens == [" named", " named", " ", "⟨e4⟩", "⟨b8⟩", "中", "!"]
    assert model.words(model.encode("中")) == [" ", "⟨e4⟩", "⟨b8⟩", "⟨ad⟩"]


def test_a_target_is_found_with_its_space_and_without() -> None:
    model = reading("pieces")
    wanted = model.tokenizer.token_to_id("▁named")
    assert target_id(model, "named") == target_id(model, " named") == wanted


@given(st.lists(st.one_of(any_text(max_size=2).map(lambda text: text.encode(errors="replace")), st.binary(max_size=3))))
def test_whole_tokens_are_read_at_once_and_the_others_byte_by_byte(tokens: list[bytes]) -> None:
    assert in_a_text(tokens) == _spread(tokens)


@given(st.text(st.characters(exclude_characters="⟨⟩", exclude_categories=["Cs"]), min_size=1, max_size=12))
def test_together_tokens_are_the_text(text: str) -> None:
    model = reading("bytes")
    tokens = model.words_in_text(model.encode(text))
    assert BYTES.sub("", "".join(tokens)) == text


@given(st.lists(st.binary(max_size=4), max_size=8))
def test_every_byte_is_told_once(tokens: list[bytes]) -> None:
    """What is no character stands as its bytes, in the token that has them."""
    told = in_a_text(tokens)
    assert len(told) == len(tokens)
    whole = b"".join(tokens).decode(errors="ignore")
    assert BYTES.sub("", "".join(told)) == BYTES.sub("", whole)
    assert all(bool(text) == bool(token) for text, token in zip(told, tokens, strict=True))
