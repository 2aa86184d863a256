"""Tokens, steps and layers as a person reads them."""

from collections.abc import Callable, Iterable
from unicodedata import combining

Words = Callable[[list[int]], list[str]]
"""From token ids to their texts: `model.words`."""


def shown(token: str) -> str:
    """A token as one sees it: white space made visible, what has no shape by its number, an accent of its own on a circle.

    >>> shown(" on\\n"), shown("a\\u200b"), shown("\\u0301")
    ('·on↵', 'a⟨U+200B⟩', '◌́')
    """
    seen = token.replace("\n", "↵").replace("\t", "⇥").replace(" ", "·")
    seen = "".join(one if one.isprintable() else f"⟨U+{ord(one):04X}⟩" for one in seen)
    return f"◌{seen}" if seen and combining(seen[0]) else seen


def printable(text: str) -> str:
    """A text without anything that moves the cursor or colours what follows.

    >>> printable("red \\x1b[31m")
    'red �[31m'
    """
    return "".join(character if character.isprintable() else "�" for character in text)


def places(steps: Iterable[object]) -> list[str]:
    """Steps by the layer that made them: the end of a layer is the layer, the middle of it its attention.

    >>> places(["embed", "L0.resid_mid", "L0.resid_post"])
    ['embed', 'L0 attention', 'L0']
    """
    return [
        str(step).removesuffix(".resid_post").replace(".resid_mid", " attention").replace(".", " ") for step in steps
    ]
