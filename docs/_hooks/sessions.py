"""An extension of griffe, which reads docstrings for mkdocstrings: examples that run (`>>>`) become code blocks."""

import re
from typing import Any

from griffe import Extension, Object

SESSION = re.compile(r"^ *>>> .*(?:\n(?!\s*$).*)*", re.M)
"""An example: from its first prompt to the next empty line."""


class Sessions(Extension):
    """Fences around every example."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = SESSION.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
