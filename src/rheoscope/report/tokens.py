"""Tokens, steps and layers as a person reads them."""

from collections.abc import Callable, Iterable

Words = Callable[[list[int]], list[str]]
"""From token ids to their texts: `model.words`."""


def shown(token: str) -> str:
    """A token as one sees it: white space made visible, nothing that moves the cursor.

    >>> shown(" on\\n")
    '·on↵'
    """
    return printable(token.replace("\n", "↵").replace("\t", "⇥").replace(" ", "·"))


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
