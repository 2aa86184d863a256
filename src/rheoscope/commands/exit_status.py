"""The exit status of a command: 0 success, 1 error, 2 bad usage, 130 Ctrl-C. Every failure prints one line."""

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import typer

from rheoscope.commands.usage import UsageError, usage_line
from rheoscope.messages.advice import Advice, with_advice
from rheoscope.messages.catalogue import render
from rheoscope.messages.message import Message
from rheoscope.report.console import discard_output

INTERRUPTED = 130


def run_to_status(command: Callable[[], object]) -> int:
    """Run a command and return its exit status. A failure prints one line on stderr, never a stack trace."""
    try:
        with warnings_as_lines():
            status = command()
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe has gone, as in `| head`
        discard_output()
        return 0
    except UsageError as error:
        print_error(usage_line(error))
        return 2
    except Exception as error:
        line = error_line(error)
        if line is None:
            raise
        print_error(line)
        return 1
    if status == INTERRUPTED:
        print_error(Message("stopped by Ctrl-C"))
    return status if isinstance(status, int) else 0


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Inside, a warning whose text is a Message is printed as one line on stderr, without the place in the source."""
    with warnings.catch_warnings():
        show_as_usual = warnings.showwarning

        def show(message: Any, *place: Any) -> None:
            text = message.args[0] if isinstance(message, Warning) and message.args else message
            print_error(text) if isinstance(text, Message) else show_as_usual(message, *place)

        warnings.showwarning = show  # type: ignore[assignment]
        yield


def print_error(line: Message) -> None:
    """Print one line on stderr. If standard output cannot be written, discard the rest of it."""
    try:
        sys.stdout.flush()
    except OSError:
        discard_output()
    with suppress(OSError):
        print(f"rheoscope: {render(line)}", file=sys.stderr, flush=True)


def error_line(error: Exception) -> Message | None:
    """An error as one line, or None if it is a fault of the program that needs a stack trace."""
    if isinstance(error, OSError) and error.errno is not None:
        reason = error.strerror or str(error)
        if error.filename is None:
            return Message("cannot write the output: {reason}", reason=reason)
        return Message("cannot read or write {path}: {reason}", path=str(error.filename), reason=reason)
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("rheoscope"):
        message = Message("the Python package {name} is not installed", name=error.name.partition(".")[0])
        return with_advice(message, Advice("", "rheoscope doctor"), "shell")
    from rheoscope.shapes import RheoscopeError  # imports torch, which `rheoscope --help` does not need

    return error.on("shell") if isinstance(error, RheoscopeError) else None


def exit_now(status: int) -> None:
    """Exit. After Ctrl-C, do not wait for threads that still compute."""
    is_busy = any(not thread.daemon and thread is not threading.main_thread() for thread in threading.enumerate())
    if status == INTERRUPTED and is_busy:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(status)
    sys.exit(status)


def end_process(statuses: Sequence[int]) -> None:
    """End with the last of these statuses at once, without freeing every imported object, which takes as long as an analysis.

    Without a status, the program ended with a stack trace, and Python ends the process.
    """
    for status in statuses[-1:]:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)
