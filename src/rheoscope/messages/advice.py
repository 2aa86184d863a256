"""What to do next, as Python, as a command line and on the page: each surface shows its own form."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rheoscope.messages.message import Command, Message


@dataclass(frozen=True)
class Advice:
    """The same step for each surface. A form that is empty does not exist there; another one is shown, marked as such.

    `python` and `shell` are typed. `page` is a clause, such as "open another model".

    >>> Advice("rs.trajectory(trace)", "rheoscope analyse trajectory").shell
    'rheoscope analyse trajectory'
    """

    python: str
    shell: str = ""
    page: str = field(default="", repr=False)


def page_setting(setting: str) -> Advice:
    """A setting of the page to type.

    >>> with_advice("there is no window 7", page_setting("window=1"), "page")
    'there is no window 7; type window=1'
    """
    return Advice(setting, page=Message("type {setting}", setting=setting))


def use(**settings: Any) -> Advice:
    """Settings to type: as keyword arguments in Python, as options on the command line.

    Heads are pairs (layer, head) in Python and layer.head in a shell; lists are separated by commas there.

    >>> use(draws=1000, keep_massive=True)
    Advice(python='draws=1000, keep_massive=True', shell='--draws 1000 --keep-massive')
    >>> use(heads=[(5, 1), (3, 2)])
    Advice(python='heads=[(5, 1), (3, 2)]', shell='--heads 5.1,3.2')
    """
    python = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    page = ", ".join(f"{name}={value}" for name, value in settings.items())
    shell = " ".join(_option(name, value) for name, value in settings.items())
    return Advice(python, shell, Message("type {setting}", setting=page))


def analyse(name: str, arguments: str = "trace") -> Advice:
    """Another analysis to run.

    >>> analyse("trajectory")
    Advice(python='rs.trajectory(trace)', shell='rheoscope analyse trajectory')
    """
    return Advice(
        f"rs.{name}({arguments})", f"rheoscope analyse {name}", Message("open the analysis {name}", name=name)
    )


def _option(name: str, value: Any) -> str:
    option = f"--{name.replace('_', '-')}"
    if value is True:
        return option
    if value is False:
        return f"--no-{name.replace('_', '-')}"
    return f"{option} {shlex.quote(_option_value(value))}"


def _option_value(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(".".join(map(str, item)) if isinstance(item, tuple) else str(item) for item in value)
    return str(value)


def with_advice(problem: str, advice: Advice | None, surface: str) -> Message:
    """A problem and what to type, as `surface` ("python", "shell" or "page") shows it.

    >>> with_advice("draws must be at most 10,000, got 20,000", use(draws=1000), "shell")
    'draws must be at most 10,000, got 20,000; type --draws 1000'
    >>> with_advice("this model has no loss", Advice("rs.trace_under(…)"), "shell")
    'this model has no loss; in Python type rs.trace_under(…)'
    """
    if advice is None:
        return problem if isinstance(problem, Message) else Message("{problem}", problem=problem)
    if surface == "page" and advice.page:
        return Message("{problem}; {step}", problem=problem, step=advice.page)
    if surface == "page" and advice.shell:
        return Message("{problem}; on the command line type {step}", problem=problem, step=Command(advice.shell))
    if surface == "page":
        return Message("{problem}; in Python type {step}", problem=problem, step=advice.python)
    if surface == "shell" and advice.shell:
        return Message("{problem}; type {step}", problem=problem, step=advice.shell)
    if surface == "shell":
        return Message("{problem}; in Python type {step}", problem=problem, step=advice.python)
    if advice.python:
        return Message("{problem}; type {step}", problem=problem, step=advice.python)
    return Message("{problem}; on the command line type {step}", problem=problem, step=Command(advice.shell))
