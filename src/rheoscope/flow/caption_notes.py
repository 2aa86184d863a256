"""Sentences that the captions of several flow plots share."""

from collections.abc import Iterable

from rheoscope.messages.message import Message


def massive_tokens_note(positions: Iterable[object]) -> Message:
    """Which massive tokens a plot leaves out.

    >>> massive_tokens_note([0, 7])
    'Massive tokens (norm above five times the median) are left out: 0, 7.'
    """
    listed = ", ".join(str(position) for position in positions)
    if not listed:
        return Message("No token is massive (norm above five times the median).")
    return Message("Massive tokens (norm above five times the median) are left out: {positions}.", positions=listed)
