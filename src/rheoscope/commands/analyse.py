"""Any analysis of the catalogue as a command: its settings are its options, read off its signature."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
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
from rheoscope.report.input_text import resolve_text
from rheoscope.report.long_texts import split_into_windows
from rheoscope.report.progress_bars import load_model
from rheoscope.report.report_plans import report_of_analysis
from rheoscope.report.setting_options import Option, typeable_options
from rheoscope.report.terminal import Terminal
from rheoscope.running.argument_checks import strip_none
from rheoscope.space.analysis import Analysis
from rheoscope.space.model import Model
from rheoscope.space.trace import Trace


def build_command(name: str) -> Callable[[list[str]], None]:
    """The command of one analysis: `command_of("transport")(["The keys", "--draws", "8"])`."""
    spec = analysis_by_name(name)
    options = typeable_options(spec)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(_command_function(spec, options))
    return lambda args: app(args, prog_name=f"rheoscope analyse {name}")


COMMON_OPTIONS: dict[str, Any] = {
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

TEXT_OPTIONS = ("file", "first", "window")


def _command_function(spec: Analysis, options: dict[str, Option]) -> Callable[..., None]:
    """A function whose signature says what can be typed, as typer reads it."""

    def run(**values: Any) -> None:
        files = run_report.OutputFiles(values["json"], values["csv"], values["html"], values.get("file"))
        text = resolve_text(values["text"], values["file"], values["first"]) if spec.reads_text else None
        source_args = values["model"], values["device"], values["dtype"]
        model = load_model(*source_args)
        settings = {name: option.parse(name, values[name], model) for name, option in options.items()}
        windows = None if text is None else split_into_windows(model, text, values["first"], values["window"])
        if build_control is not None and values["untrained"]:
            windowed_report.refuse_windows(windows, "--untrained")
            settings["control"] = build_control(
                load_model(*source_args, untrained=True), None if windows is None else windows.texts[0]
            )
        windowed_report.run_on_windows(
            report_of_analysis(spec.name), model, windows, settings, files, explain=values["explain"]
        )

    build_control = _control_builder(spec)
    parameters = {"text": _keyword_parameter("text", Text, None)} if spec.reads_text else {}
    for name, option in options.items():
        default = spec.settings[name].default
        cli_default = (
            default if option.cli_type in (int, float, str, bool, int | None, float | None, str | None) else None
        )
        if isinstance(cli_default, tuple | list):
            cli_default = ",".join(map(str, cli_default))
        parameters[name] = _keyword_parameter(
            name, Annotated[option.cli_type, typer.Option(f"--{name.replace('_', '-')}")], cli_default
        )
    if build_control is not None:
        parameters["untrained"] = _keyword_parameter("untrained", Untrained, False)
    for name, hint in COMMON_OPTIONS.items():
        if name not in parameters and (name not in TEXT_OPTIONS or spec.reads_text):
            parameters[name] = _keyword_parameter(name, hint, False if name == "explain" else None)
    run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    run.__doc__ = f"{spec.question}\n\nEvery field and its definition: --explain, or docs/analyses.md."
    return run


def _control_builder(spec: Analysis) -> Callable[[Model, Any], Any] | None:
    """From the untrained model and the text to the setting `control`, where there is one."""
    control_type = strip_none(spec.settings["control"].annotation)[1] if "control" in spec.settings else None
    builders: dict[Any, Callable[[Model, Any], Any]] = {
        Model: lambda model, text: model,
        Trace: lambda model, text: model.trace(text),
    }
    return builders.get(control_type)


def _keyword_parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default)


def show_catalogue() -> None:
    """Every analysis, a row each."""
    rows = [
        [Cell(spec.name), Cell(spec.needs), Cell(spec.question)] for spec in map(analysis_by_name, ANALYSIS_MODULES)
    ]
    header = [Cell("analysis"), Cell("needs"), Cell("what it asks")]
    Terminal(console(), []).print_table(Table("", header, rows, frozenset({0, 1, 2})))


def show_usage() -> None:
    """How any analysis is asked."""
    print("Usage: rheoscope analyse NAME [TEXT] [OPTIONS]\n")
    print("NAME is one of " + ", ".join(ANALYSIS_MODULES) + ".")
    print("rheoscope analyses says what each one asks; rheoscope analyse NAME --help shows its settings.")
