"""The command of one analysis: its options are the settings in its declaration."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from rheoscope.commands.options import (
    Adapter,
    Audio,
    Csv,
    Device,
    Dtype,
    Explain,
    File,
    First,
    Html,
    Image,
    Json,
    ModelName,
    Revisions,
    Series,
    Stream,
    TargetText,
    Text,
    Untrained,
    Window,
    one_medium,
    refuse_both,
)
from rheoscope.commands.setting_help import setting_help
from rheoscope.commands.usage import UsageProblem
from rheoscope.messages.catalogue import render
from rheoscope.messages.message import Message
from rheoscope.picture.blocks import Cell, Table
from rheoscope.report import progress_bars, run_report, series_report, windowed_report
from rheoscope.report.console import console
from rheoscope.report.input_media import Medium
from rheoscope.report.input_text import check_target, resolve_text
from rheoscope.report.long_texts import split_into_windows
from rheoscope.report.parse_options import parse_number
from rheoscope.report.report_plans import report_of_analysis
from rheoscope.report.setting_options import Option, typeable_options
from rheoscope.report.terminal import Terminal
from rheoscope.running.argument_checks import strip_none
from rheoscope.running.pair_sides import same_side, sides_for
from rheoscope.space.analysis import Analysis
from rheoscope.space.model import Model
from rheoscope.space.trace import Trace


def build_command(name: str) -> Callable[[list[str]], None]:
    """The command of one analysis, a function of its arguments: `build_command("transport")(["The keys"])`."""
    app = analysis_app(name)

    def run(arguments: list[str]) -> None:
        status = app(arguments, prog_name=f"rheoscope analyse {name}", standalone_mode=False)
        raise typer.Exit(status or 0)

    return run


def analysis_app(name: str) -> typer.Typer:
    """An app with one command, whose options are the settings of the analysis."""
    spec = analysis_by_name(name)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(
        _command_function(spec, typeable_options(spec))
    )
    return app


FIELDS_HELP = Message("--explain defines every field, as does docs/analyses.md.")
COMMON_OPTIONS: dict[str, Any] = {
    "file": File,
    "image": Image,
    "audio": Audio,
    "target": TargetText,
    "first": First,
    "window": Window,
    "model": ModelName,
    "adapter": Adapter,
    "series": Series,
    "revisions": Revisions,
    "explain": Explain,
    "json": Json,
    "csv": Csv,
    "html": Html,
    "device": Device,
    "dtype": Dtype,
    "stream": Stream,
}

TEXT_OPTIONS = ("file", "image", "audio", "target", "first", "window")


def _command_function(spec: Analysis, options: dict[str, Option]) -> Callable[..., None]:
    """A function with the signature that typer turns into the options of the analysis."""

    def run(**values: Any) -> None:
        medium = _medium(values, "target" in options) if spec.reads_text else None
        paths = values["json"], values["csv"], values["html"]
        if medium is not None:
            files = run_report.OutputFiles(*paths, medium.path, medium.option)
            _run_on_medium(spec, options, values, medium, files)
            return
        files = run_report.OutputFiles(*paths, values.get("file"))
        text = resolve_text(values["text"], values["file"], values["first"]) if spec.reads_text else None
        target = None if "target" in options else values.get("target")
        check_target(target)
        source_args = values["model"], values["device"], values["dtype"]
        if values["series"] is not None or values["revisions"] is not None:
            _run_on_series(spec, options, values, text, files)
            return
        opened_model = progress_bars.open_model(*source_args, stream=values["stream"], adapter=values["adapter"])
        model, text = sides_for(opened_model, text, target)
        settings = {name: option.parse(name, values[name], model) for name, option in options.items()}
        windows = None if text is None else split_into_windows(model, text, values["first"], values["window"])
        if build_control is not None and values["untrained"]:
            windowed_report.refuse_windows(windows, "--untrained")
            settings["control"] = build_control(
                same_side(model, progress_bars.open_model(*source_args, untrained=True)),
                None if windows is None else windows.texts[0],
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
        help_text = render(setting_help(name, spec.settings[name].annotation))
        cli_option = typer.Option(f"--{name.replace('_', '-')}", help=help_text, **_number_parser(name, option))
        parameters[name] = _keyword_parameter(name, Annotated[option.cli_type, cli_option], cli_default)
    if build_control is not None:
        parameters["untrained"] = _keyword_parameter("untrained", Untrained, False)
    for name, hint in COMMON_OPTIONS.items():
        if name not in parameters and (name not in TEXT_OPTIONS or spec.reads_text):
            parameters[name] = _keyword_parameter(name, hint, False if name == "explain" else None)
    run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    run.__doc__ = f"{render(spec.question)}\n\n{render(FIELDS_HELP)}"
    return run


def _medium(values: dict[str, Any], has_own_target: bool) -> Medium | None:
    """The image or the sound of the command, if there is one."""
    names = (
        "text",
        "file",
        "first",
        "window",
        "series",
        "revisions",
        "untrained",
        *(() if has_own_target else ("target",)),
    )
    return one_medium(values["image"], values["audio"], **{name: values.get(name) for name in names})


def _run_on_medium(
    spec: Analysis, options: dict[str, Option], values: dict[str, Any], medium: Medium, files: run_report.OutputFiles
) -> None:
    """Run the analysis on an image or a sound."""
    target = None if "target" in options else values["target"]
    check_target(target)
    medium.check()
    source_args = values["model"], values["device"], values["dtype"]
    opened_model = progress_bars.open_model(*source_args, stream=values["stream"], adapter=values["adapter"])
    model, source = medium.sides(opened_model, target)
    settings = {name: option.parse(name, values[name], model) for name, option in options.items()}
    run_report.run_report(report_of_analysis(spec.name), model, source, settings, files, explain=values["explain"])


def _run_on_series(
    spec: Analysis, options: dict[str, Option], values: dict[str, Any], text: Any, files: run_report.OutputFiles
) -> None:
    """Run the analysis on every checkpoint. The first one reads the settings and the text."""
    own_options = () if "target" in options else ("target",)
    for option in ("untrained", "adapter", "stream", "window", *own_options):
        refuse_both("--series", True, f"--{option}", bool(values.get(option)))
    refuse_both("--series", values["series"] is not None, "--revisions", values["revisions"] is not None)
    sources = values["series"], values["revisions"], values["model"], values["device"], values["dtype"]
    series = series_report.open_series(*sources)
    model = series[0]
    settings = {name: option.parse(name, values[name], model) for name, option in options.items()}
    windows = None if text is None else split_into_windows(model, text, values["first"])
    windowed_report.refuse_windows(windows, "--series")
    token_ids = None if windows is None else windows.texts[0]
    series_report.run_series(spec.name, series, token_ids, settings, files, values["explain"])


def _number_parser(name: str, option: Option) -> dict[str, Any]:
    """What typer needs to parse a number. A number of the wrong kind reaches the check of the bounds, which names them."""
    number_type = strip_none(option.cli_type)[1]
    if number_type not in (int, float):
        return {}

    def parse(text: str) -> Any:
        try:
            return parse_number(text, number_type)
        except ValueError:
            option_name = f"--{name.replace('_', '-')}"
            problem = (
                Message("{option} takes a whole number, got {text!r}", option=option_name, text=text)
                if number_type is int
                else Message("{option} takes a number, got {text!r}", option=option_name, text=text)
            )
            raise UsageProblem(problem, f"{option_name} 1") from None

    return {"parser": parse, "metavar": f"<{number_type.__name__}>"}


def _control_builder(spec: Analysis) -> Callable[[Model, Any], Any] | None:
    """A function of the untrained model and the text that builds the setting `control`, if there is one."""
    control_type = strip_none(spec.settings["control"].annotation)[1] if "control" in spec.settings else None
    builders: dict[Any, Callable[[Model, Any], Any]] = {
        Model: lambda model, text: model,
        Trace: lambda model, text: model.trace(text),
    }
    return builders.get(control_type)


def _keyword_parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default)


def show_catalogue() -> None:
    """Print a table of every analysis: name, needs and question."""
    rows = [
        [Cell(spec.name), Cell(spec.needs), Cell(spec.question)] for spec in map(analysis_by_name, ANALYSIS_MODULES)
    ]
    header = [Cell(Message("analysis")), Cell(Message("needs")), Cell(Message("question"))]
    Terminal(console(), []).print_table(Table("", header, rows, frozenset({0, 1, 2})))


def show_usage() -> None:
    """Print how to run an analysis."""
    for line in (
        Message("Usage: rheoscope analyse NAME [TEXT] [OPTIONS]"),
        Message("NAME is one of {names}.", names=", ".join(ANALYSIS_MODULES)),
        Message("`rheoscope analyses` lists the question of each. `rheoscope analyse NAME --help` lists its settings."),
    ):
        print(render(line))
