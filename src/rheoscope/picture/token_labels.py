"""Tokens, steps and layers as a person reads them."""

from collections.abc import Callable, Iterable
from unicodedata import combining

from rheoscope.messages.message import Verbatim

TokenLabels = Callable[[list[int]], list[str]]
"""From token ids to their texts: `model.token_strings`."""


def display_token(token: str) -> str:
    """A token as one sees it: white space made visible, what has no shape by its number, an accent of its own on a circle.

    >>> display_token(" on\\n"), display_token("a\\u200b"), display_token("\\u0301")
    ('·on↵', 'a⟨U+200B⟩', '◌́')
    """
    visible = token.replace("\n", "↵").replace("\t", "⇥").replace(" ", "·")
    visible = "".join(character if character.isprintable() else f"⟨U+{ord(character):04X}⟩" for character in visible)
    return Verbatim(f"◌{visible}" if visible and combining(visible[0]) else visible)


def printable(text: str) -> str:
    """A text without anything that moves the cursor or colours what follows.

    >>> printable("red \\x1b[31m")
    'red �[31m'
    """
    return "".join(character if character.isprintable() else "�" for character in text)


def step_names(steps: Iterable[object]) -> list[str]:
    """Steps by the layer that made them: the end of a layer is the layer, the middle of it its attention.

    >>> step_names(["embed", "L0.resid_mid", "L0.resid_post"])
    ['embed', 'L0 attention', 'L0']
    """
    return [
        str(step).removesuffix(".resid_post").replace(".resid_mid", " attention").replace(".", " ") for step in steps
    ]
