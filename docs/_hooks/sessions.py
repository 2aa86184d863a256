"""A griffe extension for mkdocstrings: doctest examples (`>>>`) of docstrings become code blocks."""

import re
from typing import Any

from griffe import Extension, Object

SESSION = re.compile(r"^ *>>> .*(?:\n(?!\s*$).*)*", re.M)
"""An example, from its first prompt to the next empty line."""


class Sessions(Extension):
    """Put every doctest example into a fenced code block."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = SESSION.sub(lambda match: f"```pycon\n{match[0]}\n```", obj.docstring.value)
