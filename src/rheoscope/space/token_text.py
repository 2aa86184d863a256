"""Tokens as people read them: the space that a token begins with, and characters whose bytes are spread over several tokens.

A vocabulary writes its tokens in an alphabet of its own: GPT-2's writes every byte as a letter (`Ġ` is a space), SentencePiece
writes a space as `▁` and a byte that no token has as `<0xE4>`. A decoder undoes that for a whole text; asked for one token, it
drops the space, and gives � where the token holds a part of a character.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby

MARKER = "▁"
"""SentencePiece's space."""
UNREADABLE = "\N{REPLACEMENT CHARACTER}"


def as_bytes(piece: str, decoded: str) -> bytes:
    """What a token stands for, in UTF-8, from its name in the vocabulary and from what its decoder makes of it alone.

    >>> as_bytes("▁named", "named"), as_bytes("<0xE4>", UNREADABLE), as_bytes("ä¸", UNREADABLE), as_bytes("the", "the")
    (b' named', b'\\xe4', b'\\xe4\\xb8', b'the')
    """
    byte = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", piece)
    if byte and decoded != piece:
        return bytes.fromhex(byte[1])
    letters = letter_bytes()
    if UNREADABLE in decoded and all(letter in letters for letter in piece):
        return bytes(letters[letter] for letter in piece)
    if MARKER in piece and MARKER not in decoded:
        return piece.replace(MARKER, " ").encode(errors="replace")
    return decoded.encode(errors="replace")


def alone(token: bytes) -> str:
    """One token by itself: what is no whole character is written as its bytes.

    >>> alone(b" \\xe4\\xb8"), alone("中".encode())
    (' ⟨e4⟩⟨b8⟩', '中')
    """
    return in_a_text([token])[0]


def in_a_text(tokens: Sequence[bytes]) -> list[str]:
    """Tokens that follow each other: a character stands in the token that completes it, its bytes in those before.

    >>> in_a_text([b"\\xe4", b"\\xb8", b"\\xad", b"!", b"\\xff"])
    ['⟨e4⟩', '⟨b8⟩', '中', '!', '⟨ff⟩']
    """
    told = [whole_text(token) or None for token in tokens]  # nearly all are, and no character reaches into such a one
    for open_, run in groupby(range(len(tokens)), key=lambda at: told[at] is None) if None in told else ():
        if open_:
            places = list(run)
            told[places[0] : places[-1] + 1] = _spread([tokens[at] for at in places])
    return [one or "" for one in told]


def _spread(tokens: Sequence[bytes]) -> list[str]:
    """The same, byte by byte."""
    whole, owner = b"".join(tokens), [at for at, token in enumerate(tokens) for _ in token]
    told = [""] * len(tokens)
    for start, end, character in characters(whole):
        last = owner[end - 1]
        for at in range(start, end):
            if owner[at] != last:
                told[owner[at]] += angles(whole[at : at + 1])
        told[last] += character
    return told


def characters(whole: bytes) -> Iterator[tuple[int, int, str]]:
    """Every character of UTF-8 with where it begins and ends; a byte that belongs to none as itself."""
    start = 0
    while start < len(whole):
        end = next((start + size for size in range(1, 5) if whole_text(whole[start : start + size]) is not None), None)
        yield (
            (start, start + 1, angles(whole[start : start + 1]))
            if end is None
            else (start, end, whole[start:end].decode())
        )
        start = end or start + 1


def whole_text(some: bytes) -> str | None:
    """These bytes as text, None where they are not whole characters.

    >>> whole_text(" 中".encode()), whole_text(b"\\xe4")
    (' 中', None)
    """
    try:
        return some.decode()
    except UnicodeDecodeError:
        return None


def angles(some: bytes) -> str:
    """Bytes that are no character.

    >>> angles(b"\\xe4\\xb8")
    '⟨e4⟩⟨b8⟩'
    """
    return "".join(f"⟨{byte:02x}⟩" for byte in some)


@cache
def letter_bytes() -> dict[str, int]:
    """The letter by which byte-level vocabularies write each byte: itself where it can be seen, else the next letter from 256 on.

    >>> letter_bytes()["Ġ"], letter_bytes()["a"]
    (32, 97)
    """
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + at): byte for at, byte in enumerate(hidden)}
