"""Errors of the libraries below as one line, without the words of the library where the reason is known."""

import json
import textwrap
from pathlib import Path

from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

LENGTH = 200
"""The largest number of characters of an error that is quoted."""


def one_line(error: Exception) -> str:
    """The text of an error in one line. Long texts are cut.

    >>> one_line(ValueError("two\\nlines"))
    'two lines'
    """
    return textwrap.shorten(str(error), LENGTH, placeholder=" …") or type(error).__name__


def plain_reason(error: Exception) -> str:
    """The text of an error as part of a sentence: without Markdown and without a full stop. One word alone keeps its kind.

    >>> plain_reason(ValueError("`width` must be divisible by heads (got 64 and 3).")), plain_reason(KeyError("act"))
    ('width must be divisible by heads (got 64 and 3)', "KeyError: 'act'")
    """
    text = one_line(error).replace("`", "").removesuffix(".")
    return text if " " in text else f"{type(error).__name__}: {text}"


def config_error(file: Path) -> RheoscopeError | None:
    """What is wrong with a config.json that transformers refuses: it is no JSON, or names no model type. None if neither is."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return RheoscopeError(Message("{file} is no valid JSON; download it again", file=str(file)))
    if isinstance(content, dict) and content.get("model_type"):
        return None
    return RheoscopeError(Message("{file} names no model type (model_type); download it again", file=str(file)))
