"""A sentence for people that remembers its template and its parameters, so that any surface can show it in any language."""

from collections.abc import Iterable, Mapping
from typing import Any


class Message(str):
    """An English sentence made from a template with named parameters.

    A Message is a `str`, so it can stand wherever text stands. It also keeps `template` and `parameters`. `translate`
    renders the same values in another language; no code ever parses the rendered sentence.

    **Parameters** are strings, numbers or other Messages. A format goes into the template, as in `str.format`:
    `Message("κ = {kappa:.2f}", kappa=0.5)`.

    **Laws** `str(message)` is the template filled in. A template without parameters translates by itself, so a plain
    string that equals a template is translated too.

    **Siblings** `plural` chooses between two templates by a count; `join` puts several messages together.

    >>> heads = Message("{n} of {total} heads attend to similar tokens", n=0, total=24)
    >>> heads
    '0 of 24 heads attend to similar tokens'
    >>> heads.template, heads.parameters["total"]
    ('{n} of {total} heads attend to similar tokens', 24)
    """

    template: str
    parameters: dict[str, Any]

    def __new__(cls, template: str, /, **parameters: Any) -> "Message":
        message = super().__new__(cls, template.format(**parameters) if parameters else template)
        message.template, message.parameters = str(template), parameters
        return message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.template, self.parameters)


class Verbatim(str):
    """Text that is never translated, such as a token or a user's text, even where it equals a template."""


class Command(Verbatim):
    """A complete command to type. The page shows it with a button that copies it."""


def _rebuild(template: str, parameters: Mapping[str, Any]) -> Message:
    return Message(template, **parameters)


def plural(singular: str, plural_form: str, /, n: int, **parameters: Any) -> Message:
    """The template for one thing, or the one for any other number; both have the parameter `n`.

    >>> plural("{n} head", "{n} heads", n=1), plural("{n} head", "{n:,} heads", n=1200)
    ('1 head', '1,200 heads')
    """
    return Message(singular if n == 1 else plural_form, n=n, **parameters)


def join(separator: str, parts: Iterable[str]) -> Message:
    """Messages one after the other, each of them still translatable.

    >>> join(" ", [Message("Layer {layer}.", layer=3), Message("No change.")]).parameters["part1"].template
    'No change.'
    """
    named = {f"part{i}": part for i, part in enumerate(parts)}
    gap = separator.replace("{", "{{").replace("}", "}}")
    return Message(gap.join(f"{{{name}}}" for name in named), **named)
