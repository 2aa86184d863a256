"""Any analysis of the catalogue as a command: its settings are its options, read off its signature."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer

from rheoscope.catalogue import TABLE, analysis
from rheoscope.report import command, pieces
from rheoscope.report.console import console
from rheoscope.report.jobs import job_of
from rheoscope.report.long_texts import cut
from rheoscope.report.options import (
    Csv,
    Device,
    Dtype,
    Explain,
    File,
    First,
    Html,
    Json,
    ModelName,
    Text,
    Untrained,
    Window,
)
from rheoscope.report.progress import opened
from rheoscope.report.telling import Cell, Table
from rheoscope.report.terminal import Terminal
from rheoscope.report.texts import text_of
from rheoscope.report.typed import heads_of, labels_of, numbers_of, texts_of, token_of
from rheoscope.space.analysis import Analysis
from rheoscope.space.given import without_none
from rheoscope.space.model import Model
from rheoscope.space.trace import Trace

Read = Callable[[str, Any, Model], Any]
"""From the name of an option, what was typed and the model to the setting."""


TEXTS_BETWEEN_BARS = ("prefixes", "targets", "foils")
"""Settings that are lists of texts."""


@dataclass(frozen=True)
class Option:
    """How a setting of some type is typed, and read."""

    typed: Any
    read: Read


def option_of(name: str, hint: Any) -> Option | None:
    """The option of a setting, by its name and type; None for what cannot be typed (a Dataset, a Trace).

    >>> option_of("draws", int).typed, option_of("strides", list[int] | None).typed, option_of("control", dict)
    (<class 'int'>, str | None, None)
    >>> option_of("words", dict | str | None).typed
    str | None
    """
    optional, plain = without_none(hint)
    if name == "heads":
        return Option(str | None, lambda _, typed, model: heads_of(typed, model.view))
    if name == "labels":
        return Option(str | None, lambda _, typed, model: None if typed is None else labels_of(typed))
    if name in TEXTS_BETWEEN_BARS:
        return Option(str | None, lambda _, typed, model: None if typed is None else texts_of(typed))
    if plain in (int, float, str, bool):
        return Option(plain | None if optional else plain, lambda _, typed, model: typed)
    if plain == str | int:
        return Option(str | None, lambda _, typed, model: None if typed is None else token_of(typed))
    if get_origin(plain) in (Union, UnionType) and str in get_args(
        plain
    ):  # a text or the name of a file, beside what cannot be typed
        return Option(str | None if optional else str, lambda _, typed, model: typed)
    number = _number_in(plain)
    if number is not None:
        return Option(
            str | None, lambda option, typed, model: None if typed is None else numbers_of(typed, number, option)
        )
    return None


def _number_in(hint: Any) -> Callable[[str], Any] | None:
    """int or float where a setting is a sequence of them."""
    parts = get_args(hint)
    if get_origin(hint) is None or not parts:
        return None
    inner = get_args(parts[0]) or (parts[0],)
    return float if float in inner else int if inner == (int,) else None


def command_of(name: str) -> Callable[[list[str]], None]:
    """The command of one analysis: `command_of("transport")(["The keys", "--draws", "8"])`."""
    asked = analysis(name)
    options = options_of(asked)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(_function(asked, options))
    return lambda words: app(words, prog_name=f"rheoscope analyse {name}")


def options_of(asked: Analysis) -> dict[str, Option]:
    """Every setting that can be typed."""
    found = {name: option_of(name, one.annotation) for name, one in asked.settings.items()}
    return {name: option for name, option in found.items() if option is not None}


COMMON: dict[str, Any] = {
    "file": File,
    "first": First,
    "window": Window,
    "model": ModelName,
    "explain": Explain,
    "json": Json,
    "csv": Csv,
    "html": Html,
    "device": Device,
    "dtype": Dtype,
}

OF_TEXTS = ("file", "first", "window")


def _function(asked: Analysis, options: dict[str, Option]) -> Callable[..., None]:
    """A function whose signature says what can be typed, as typer reads it."""

    def run(**typed: Any) -> None:
        files = command.Files(typed["json"], typed["csv"], typed["html"], typed.get("file"))
        said = text_of(typed["text"], typed["file"], typed["first"]) if asked.reads_text else None
        named = typed["model"], typed["device"], typed["dtype"]
        model = opened(*named)
        settings = {name: option.read(name, typed[name], model) for name, option in options.items()}
        parts = None if said is None else cut(model, said, typed["first"], typed["window"])
        if control is not None and typed["untrained"]:
            pieces.refuse_several(parts, "--untrained")
            settings["control"] = control(opened(*named, untrained=True), None if parts is None else parts.texts[0])
        pieces.run(job_of(asked.name), model, parts, settings, files, explain=typed["explain"])

    control = _control(asked)
    parameters = {"text": _parameter("text", Text, None)} if asked.reads_text else {}
    for name, option in options.items():
        default = asked.settings[name].default
        shown = default if option.typed in (int, float, str, bool, int | None, float | None, str | None) else None
        if isinstance(shown, tuple | list):
            shown = ",".join(map(str, shown))
        parameters[name] = _parameter(name, Annotated[option.typed, typer.Option(f"--{name.replace('_', '-')}")], shown)
    if control is not None:
        parameters["untrained"] = _parameter("untrained", Untrained, False)
    for name, hint in COMMON.items():
        if name not in parameters and (name not in OF_TEXTS or asked.reads_text):
            parameters[name] = _parameter(name, hint, False if name == "explain" else None)
    run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: one.annotation for name, one in parameters.items()}
    run.__doc__ = f"{asked.question}\n\nEvery field and its definition: --explain, or docs/analyses.md."
    return run


def _control(asked: Analysis) -> Callable[[Model, Any], Any] | None:
    """From the untrained model and the text to the setting `control`, where there is one."""
    kind = without_none(asked.settings["control"].annotation)[1] if "control" in asked.settings else None
    made: dict[Any, Callable[[Model, Any], Any]] = {
        Model: lambda model, said: model,
        Trace: lambda model, said: model.trace(said),
    }
    return made.get(kind)


def _parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default)


def show_catalogue() -> None:
    """Every analysis, a row each."""
    rows = [[Cell(one.name), Cell(one.needs), Cell(one.question)] for one in map(analysis, TABLE)]
    header = [Cell("analysis"), Cell("needs"), Cell("what it asks")]
    Terminal(console(), []).table(Table("", header, rows, frozenset({0, 1, 2})))


def show_usage() -> None:
    """How any analysis is asked."""
    print("Usage: rheoscope analyse NAME [TEXT] [OPTIONS]\n")
    print("NAME is one of " + ", ".join(TABLE) + ".")
    print("rheoscope analyses says what each one asks; rheoscope analyse NAME --help shows its settings.")
