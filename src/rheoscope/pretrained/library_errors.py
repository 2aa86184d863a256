"""Errors of the libraries below as one line."""

import textwrap

LENGTH = 200
"""The largest number of characters of an error that is quoted."""


def one_line(error: Exception) -> str:
    """The text of an error in one line. Long texts are cut.

    >>> one_line(ValueError("two\\nlines"))
    'two lines'
    """
    return textwrap.shorten(str(error), LENGTH, placeholder=" …") or type(error).__name__
