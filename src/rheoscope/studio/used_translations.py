"""The part of a catalogue that a page needs: the templates whose letters occur in its script or in its responses."""

import json
import re
from collections.abc import Iterable
from string import ascii_letters, digits

LETTERS = (ascii_letters + digits).encode()
OTHER_BYTES = bytes(set(range(256)) - set(LETTERS))
UNESCAPED = re.compile(r"[^ -~]+")
"""Characters that scripts and JSON may write as an escape, whose letters would stand between those of the template."""


def used_translations(catalogue_script: str, contents: Iterable[bytes]) -> str:
    """The script of a catalogue, without the templates that occur in none of the contents.

    Only letters and digits are compared, because scripts and JSON escape other characters in different ways. So a template
    that is not needed may stay, but no template that is needed is lost.

    >>> used_translations('catalogue = {"{n} heads":"{n} 个头","{n} layers":"{n} 层"}', [b'render("{n} heads")'])
    'catalogue = {"{n} heads":"{n} 个头"}'
    """
    start = catalogue_script.index('{"')
    catalogue = json.loads(catalogue_script[start:].rstrip().rstrip(";"))
    searched = b"\0".join(only_letters(content) for content in contents)
    used = {template: text for template, text in catalogue.items() if has_template(searched, template)}
    return catalogue_script[:start] + json.dumps(used, ensure_ascii=False, separators=(",", ":"))


def has_template(searched: bytes, template: str) -> bool:
    """Whether the letters of the template occur, in pieces between the characters that may be escaped."""
    return all(only_letters(piece.encode()) in searched for piece in UNESCAPED.split(template))


def only_letters(content: bytes) -> bytes:
    """The ASCII letters and digits of a text."""
    return content.translate(None, OTHER_BYTES)
