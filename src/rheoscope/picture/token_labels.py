"""Readable labels of tokens and steps."""

from collections.abc import Callable, Iterable
from unicodedata import combining

from rheoscope.messages.message import Verbatim

VARIATION_SELECTORS = tuple(map(chr, range(0xFE00, 0xFE10)))
"""Characters that choose a style of the character before them and are invisible alone."""
TokenLabels = Callable[[list[int]], list[str]]
"""A function from token ids to texts, such as `model.token_strings`."""


def display_token(token: str) -> str:
    """A token with visible white space, numbers for unprintable characters, and a circle below a lone accent.

    >>> display_token(" on\\n"), display_token("a\\u200b"), display_token("\\u0301"), display_token("\\ufe0f")
    ('·on↵', 'a⟨U+200B⟩', '◌́', '⟨U+FE0F⟩')
    """
    visible = token.replace("\n", "↵").replace("\t", "⇥").replace(" ", "·")
    visible = "".join(character if character.isprintable() else code_point(character) for character in visible)
    if visible[:1] in VARIATION_SELECTORS:
        return Verbatim(code_point(visible[0]) + visible[1:])
    return Verbatim(f"◌{visible}" if visible and combining(visible[0]) else visible)


def code_point(character: str) -> str:
    return f"⟨U+{ord(character):04X}⟩"


def quoted_token(token: str) -> str:
    """A token as a sentence names it: in quotation marks if it has no letter, so that it is not read as punctuation.

    >>> quoted_token(" on"), quoted_token(","), quoted_token(" 3")
    ('·on', '“,”', '“·3”')
    """
    visible = display_token(token)
    return visible if any(map(str.isalpha, visible)) else Verbatim(f"“{visible}”")


def printable(text: str) -> str:
    """A text with every control character replaced, so that it cannot move the cursor or change colours.

    >>> printable("red \\x1b[31m")
    'red �[31m'
    """
    return "".join(character if character.isprintable() else "�" for character in text)


def step_names(steps: Iterable[object]) -> list[str]:
    """Labels of steps. "L0 attn" is the stream after the attention of layer 0, "L0 mlp" that after its MLP.

    A layer whose attention has no step of its own has the name of the layer.

    >>> step_names(["embed", "L0.resid_mid", "L0.resid_post", "L1.resid_post"])
    ['embed', 'L0 attn', 'L0 mlp', 'L1']
    """
    names = list(map(str, steps))
    return [_step_name(*name.split("."), divided=name.replace("post", "mid") in names) for name in names]


def _step_name(layer: str, *part: str, divided: bool) -> str:
    if part == ("resid_mid",):
        return f"{layer} attn"
    if part == ("resid_post",):
        return f"{layer} mlp" if divided else layer
    return " ".join([layer, *part])
