"""The help of a command as it is printed: a paragraph is one line, which the terminal wraps, and every example has a line."""

import inspect

EXAMPLES = "Examples:"
SEPARATOR = "·"
"""What separates two examples in a docstring."""


def lay_out_help(docstring: str) -> str:
    """The docstring of a command, without line breaks inside paragraphs.

    >>> print(lay_out_help("Train a\\nmodel.\\n\\nExamples:  rheoscope train    ·    rheoscope train tiny"))
    Train a model.
    <BLANKLINE>
    Examples:
    rheoscope train
    rheoscope train tiny
    """
    return "\n\n".join(map(_lay_out_paragraph, inspect.cleandoc(docstring).split("\n\n")))


def _lay_out_paragraph(paragraph: str) -> str:
    text = " ".join(paragraph.split())
    if not text.startswith(EXAMPLES):
        return text
    examples = text.removeprefix(EXAMPLES).split(f" {SEPARATOR} ")
    return "\n".join([EXAMPLES, *(example.strip() for example in examples)])
