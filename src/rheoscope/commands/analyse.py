"""Any analysis of the catalogue as a command: its settings are its options, read off its signature."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from rheoscope.catalogue import TABLE, analysis
from rheoscope.commands.options import (
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
from rheoscope.picture.blocks import Cell, Table
from rheoscope.report import run_report, windowed_report
from rheoscope.report.console import console
from rheoscope.report.input_text import text_of
from rheoscope.report.long_texts import cut
from rheoscope.report.progress_bars import opened
from rheoscope.report.report_plans import job_of
from rheoscope.report.setting_options import Option, options_of
from rheoscope.report.terminal import Terminal
from rheoscope.running.argument_checks import without_none
from rheoscope.space.analysis import Analysis
from rheoscope.space.model import Model
from rheoscope.space.trace import Trace


def command_of(name: str) -> Callable[[list[str]], None]:
    """The command of one analysis: `command_of("transport")(["The keys", "--draws", "8"])`."""
    asked = analysis(name)
    options = options_of(asked)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(_function(asked, options))
    return lambda words: app(words, prog_name=f"rheoscope analyse {name}")


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
        files = run_report.Files(typed["json"], typed["csv"], typed["html"], typed.get("file"))
        said = text_of(typed["text"], typed["file"], typed["first"]) if asked.reads_text else None
        named = typed["model"], typed["device"], typed["dtype"]
        model = opened(*named)
        settings = {name: option.read(name, typed[name], model) for name, option in options.items()}
        parts = None if said is None else cut(model, said, typed["first"], typed["window"])
        if control is not None and typed["untrained"]:
            windowed_report.refuse_several(parts, "--untrained")
            settings["control"] = control(opened(*named, untrained=True), None if parts is None else parts.texts[0])
        windowed_report.run(job_of(asked.name), model, parts, settings, files, explain=typed["explain"])

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
