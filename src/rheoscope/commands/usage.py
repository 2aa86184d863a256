"""Bad usage: an error of one line that says what to type, with exit status 2."""

import typer

from rheoscope.messages.advice import Advice, with_advice
from rheoscope.messages.message import Message

UsageError: type[Exception] = typer.BadParameter.__base__  # type: ignore[assignment]
"""The class of every usage error, in versions of typer with and without click."""


class UsageProblem(UsageError):  # type: ignore[valid-type, misc]
    """A command line that cannot be understood, and the command to type instead."""

    def __init__(self, message: Message, command: str) -> None:
        self.line = with_advice(message, Advice("", command), "shell")
        super().__init__(str(self.line))


def usage_line(error: Exception) -> Message:
    """A usage error as one line: the problem, and the command whose help answers it."""
    if isinstance(error, UsageProblem):
        return error.line
    context = getattr(error, "ctx", None)
    command = "rheoscope" if context is None else context.command_path
    problem = " ".join(error.format_message().split()).rstrip(".")  # type: ignore[attr-defined]
    return with_advice(Message("{problem}", problem=problem), Advice("", f"{command} --help"), "shell")
