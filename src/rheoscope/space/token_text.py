"""Tokens as readable text: leading spaces, and characters whose bytes span several tokens.

A vocabulary writes its tokens in its own alphabet. GPT-2 writes every byte as a letter (`Ġ` is a space). SentencePiece writes a
space as `▁` and a byte without a token as `<0xE4>`. A decoder reverses this for a whole text. For a single token it drops the
space, and returns � if the token holds part of a character.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby

SPACE_MARKER = "▁"
"""SentencePiece's mark for a space."""
UNREADABLE = "\N{REPLACEMENT CHARACTER}"


def as_bytes(vocabulary_entry: str, decoded: str) -> bytes:
    """The UTF-8 bytes of a token, from its vocabulary entry and from its decoded form.

    >>> as_bytes("▁named", "named"), as_bytes("<0xE4>", UNREADABLE), as_bytes("ä¸", UNREADABLE), as_bytes("the", "the")
    (b' named', b'\\xe4', b'\\xe4\\xb8', b'the')
    """
    byte = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", vocabulary_entry)
    if byte and decoded != vocabulary_entry:
        return bytes.fromhex(byte[1])
    letters = letter_bytes()
    if UNREADABLE in decoded and all(letter in letters for letter in vocabulary_entry):
        return bytes(letters[letter] for letter in vocabulary_entry)
    if SPACE_MARKER in vocabulary_entry and SPACE_MARKER not in decoded:
        return vocabulary_entry.replace(SPACE_MARKER, " ").encode(errors="replace")
    return decoded.encode(errors="replace")


def decode_token(token_bytes: bytes) -> str:
    """One token by itself; incomplete characters are written as bytes.

    >>> decode_token(b" \\xe4\\xb8"), decode_token("中".encode())
    (' ⟨e4⟩⟨b8⟩', '中')
    """
    return decode_tokens([token_bytes])[0]


def decode_tokens(tokens: Sequence[bytes]) -> list[str]:
    """Consecutive tokens as text: a character belongs to the token that completes it, earlier tokens show its bytes.

    >>> decode_tokens([b"\\xe4", b"\\xb8", b"\\xad", b"!", b"\\xff"])
    ['⟨e4⟩', '⟨b8⟩', '中', '!', '⟨ff⟩']
    """
    texts = [decode_utf8(token) or None for token in tokens]  # almost all decode, and no character spans such a token
    for is_incomplete, index_run in (
        groupby(range(len(tokens)), key=lambda index: texts[index] is None) if None in texts else ()
    ):
        if is_incomplete:
            indices = list(index_run)
            texts[indices[0] : indices[-1] + 1] = _decode_bytewise([tokens[index] for index in indices])
    return [text or "" for text in texts]


def _decode_bytewise(tokens: Sequence[bytes]) -> list[str]:
    """The same for tokens with incomplete characters, byte by byte."""
    data, token_of_byte = b"".join(tokens), [token_index for token_index, token in enumerate(tokens) for _ in token]
    texts = [""] * len(tokens)
    for start, end, character in characters(data):
        last_token = token_of_byte[end - 1]
        for byte_index in range(start, end):
            if token_of_byte[byte_index] != last_token:
                texts[token_of_byte[byte_index]] += bytes_in_angles(data[byte_index : byte_index + 1])
        texts[last_token] += character
    return texts


def characters(data: bytes) -> Iterator[tuple[int, int, str]]:
    """Every UTF-8 character with its start and end; an invalid byte counts as one."""
    start = 0
    while start < len(data):
        end = next((start + size for size in range(1, 5) if decode_utf8(data[start : start + size]) is not None), None)
        yield (
            (start, start + 1, bytes_in_angles(data[start : start + 1]))
            if end is None
            else (start, end, data[start:end].decode())
        )
        start = end or start + 1


def decode_utf8(data: bytes) -> str | None:
    """The bytes as text; None if they hold an incomplete character.

    >>> decode_utf8(" 中".encode()), decode_utf8(b"\\xe4")
    (' 中', None)
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def bytes_in_angles(data: bytes) -> str:
    """Bytes in angle brackets, for invalid UTF-8.

    >>> bytes_in_angles(b"\\xe4\\xb8")
    '⟨e4⟩⟨b8⟩'
    """
    return "".join(f"⟨{byte:02x}⟩" for byte in data)


@cache
def letter_bytes() -> dict[str, int]:
    """The letter of each byte in byte-level vocabularies: the printable character itself, else the next code from 256 on.

    >>> letter_bytes()["Ġ"], letter_bytes()["a"]
    (32, 97)
    """
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + offset): byte for offset, byte in enumerate(hidden)}
