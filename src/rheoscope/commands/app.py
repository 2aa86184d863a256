"""The command `rheoscope`: thin, every answer comes from the rooms below."""

import gc
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer

from rheoscope.commands.bench import bench
from rheoscope.commands.corpus import corpus
from rheoscope.commands.dynamics import dynamics
from rheoscope.commands.options import (
    Csv,
    Device,
    Dtype,
    Explain,
    Fast,
    File,
    First,
    Html,
    Json,
    ModelName,
    Text,
    Window,
)
from rheoscope.commands.race import race
from rheoscope.commands.studio import studio
from rheoscope.commands.train import heal, learned, train
from rheoscope.commands.variadic_options import VariadicCommand
from rheoscope.report.console import replace_unencodable

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(is_requested: bool) -> bool:
    if is_requested:
        from rheoscope import __version__

        print(f"rheoscope {__version__}")
        raise typer.Exit
    return is_requested


@app.callback()
def rheoscope(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False) -> None:
    """See, measure and redesign attention as geometry."""


@app.command()
def attention(
    out: Annotated[Path, typer.Option(help="Directory for the picture (PNG) and the page (HTML).")] = Path(),
    json: Annotated[Path | None, typer.Option(help="Also write every number to this file.")] = None,
    tokens: Annotated[int, typer.Option(min=1, max=1_000_000, help="Length for which the lowering is chosen.")] = 2048,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say why each lowering is taken, and why not the others.")
    ] = False,
    laws: Annotated[
        bool, typer.Option("--laws", help="Every definition and theorem of attention with its violation, and no more.")
    ] = False,
) -> None:
    """Every attention mechanism: its laws checked live, how it runs on this machine, a picture of its weights.

    Examples:  rheoscope attention    ·    rheoscope attention --explain    ·    rheoscope attention --laws --json laws.json
    """
    from rheoscope.report import mechanism_survey as attention_report
    from rheoscope.report import theorem_table

    if laws:
        theorem_table.show_laws(json)
    else:
        attention_report.show_mechanisms(out, json, tokens, explain)


@app.command("flow")
def flow_command(
    text: Text = None,
    file: File = None,
    compare: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A second text, layer by layer beside it.")
    ] = None,
    first: First = None,
    window: Window = None,
    model: ModelName = None,
    space: Annotated[str, typer.Option(help="raw, normed (after the final norm) or sphere (directions).")] = "raw",
    controls: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=64,
            help="Untrained models beside it (default: 4, of large models and long texts 1; 3 or more are a null).",
        ),
    ] = None,
    no_control: Annotated[bool, typer.Option("--no-control", help="None of them.")] = False,
    fast: Fast = False,
    explain: Explain = False,
    json: Json = None,
    csv: Csv = None,
    html: Annotated[
        Path | None, typer.Option(help="Write the report to this file (default: a free report.html).")
    ] = None,
    no_html: Annotated[bool, typer.Option("--no-html", help="Write no report.")] = False,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """The main job: seven questions to a text in a model, the numbers behind them, and a report. `rheoscope "some text"` is the same.

    Examples:  rheoscope "The keys to the cabinet are"    ·    rheoscope flow --model gpt2 --file notes.txt --html notes.html
    ·    rheoscope "The keys to the cabinet are" --compare "The key to the cabinets is"
    """
    from rheoscope.flow.cloud import check_space
    from rheoscope.report import run_report, windowed_report
    from rheoscope.report.input_text import check_text, clean_typed_text, resolve_text
    from rheoscope.report.long_texts import split_into_windows
    from rheoscope.report.progress_bars import control_factories, load_model
    from rheoscope.report.report_plans import REPORTS

    _refuse_both("--html", html is not None, "--no-html", no_html)
    _refuse_both("--controls", controls is not None, "--no-control", no_control)
    check_space(space)
    check_text(compare)
    input_text = resolve_text(text, file, first)
    files = run_report.OutputFiles(json, csv, html, file, default_page=not no_html)
    network = load_model(model, device, dtype)
    text_windows = split_into_windows(network, input_text, first, window)
    if compare is None:
        n_controls, n_tokens = 0 if no_control or fast else controls, text_windows.n_tokens // len(text_windows.texts)
        control_models = control_factories(network, model, device, dtype, n_controls, n_tokens)
        windowed_report.run_on_windows(
            REPORTS["flow"], network, text_windows, {"space": space}, files, fast, explain, control_models
        )
    else:
        windowed_report.refuse_windows(text_windows, "--compare")
        text_pair = text_windows.texts[0], split_into_windows(network, clean_typed_text(compare), first).texts[0]
        run_report.compare_texts(REPORTS["flow"], network, text_pair, {"space": space}, files, fast, explain)


def _refuse_both(option: str, is_given: bool, other: str, is_other_given: bool) -> None:
    """Raise where two options that exclude each other are both given."""
    from rheoscope.messages.advice import Advice
    from rheoscope.messages.message import Message
    from rheoscope.shapes import RheoscopeError

    if is_given and is_other_given:
        problem = Message("{option} and {other} exclude each other", option=option, other=other)
        raise RheoscopeError(problem, Advice("", "one of them"))


@app.command("operators")
def operators_command(
    text: Annotated[str | None, typer.Option(help="Also say what scores are made of on this text.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Bare weights, without the gain of the norm, as papers print them.")
    ] = False,
    model: ModelName = None,
    explain: Explain = False,
    json: Json = None,
    csv: Csv = None,
    html: Html = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Every head of a model as two operators, M (QK circuit) and F (OV circuit): symmetry, direction, rank, copying.

    Examples:  rheoscope operators --model gpt2    ·    rheoscope operators -m path/ --html heads.html --json heads.json
    ·    rheoscope operators -m gpt2 --text "The keys to the cabinet are on the table"
    """
    from rheoscope.report import run_report
    from rheoscope.report.input_text import check_text
    from rheoscope.report.progress_bars import load_model
    from rheoscope.report.report_plans import REPORTS

    check_text(text)
    files, network = run_report.OutputFiles(json, csv, html), load_model(model, device, dtype)
    run_report.run_report(REPORTS["operators"], network, text, {"raw": raw, "text": text}, files, explain=explain)


@app.command("covers")
def covers_command(
    text: Text = None,
    file: File = None,
    draws: Annotated[int, typer.Option(min=2, max=10_000, help="Random heads beside each head.")] = 40,
    untrained: Annotated[
        bool, typer.Option("--untrained/--no-untrained", help="Beside it the same architecture at initial weights.")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="Another one draws other initial weights.")] = 0,
    first: First = None,
    window: Window = None,
    model: ModelName = None,
    fast: Fast = False,
    explain: Explain = False,
    json: Json = None,
    csv: Csv = None,
    html: Html = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Does attention read similarity? Every head's scores against the cosines of the tokens, beside random heads and untrained ones.

    Examples:  rheoscope covers "The keys to the cabinet are on the table"    ·    rheoscope covers --file notes.txt --html covers.html
    ·    rheoscope covers --file notes.txt --model path/ --no-untrained
    """
    from rheoscope.report import run_report, windowed_report
    from rheoscope.report.input_text import resolve_text
    from rheoscope.report.long_texts import split_into_windows
    from rheoscope.report.progress_bars import load_model
    from rheoscope.report.report_plans import REPORTS

    input_text, files = resolve_text(text, file, first), run_report.OutputFiles(json, csv, html, file)
    network = load_model(model, device, dtype)
    text_windows = split_into_windows(network, input_text, first, window)
    control = load_model(model, device, dtype, untrained=True, seed=seed) if untrained else None
    control_settings = (
        windowed_report.no_text_options if control is None else lambda ids: {"control": control.trace(ids)}
    )
    windowed_report.run_on_windows(
        REPORTS["covers"], network, text_windows, {"draws": draws}, files, fast, explain, text_options=control_settings
    )


@app.command("surgery")
def surgery_command(
    text: Text = None,
    file: Annotated[
        Path | None, typer.Option(help="Read the text from this file; more text, closer intervals.")
    ] = None,
    heads: Annotated[str | None, typer.Option(help="layer.head,… or a layer as L5 (default: every head).")] = None,
    M: Annotated[
        str | None, typer.Option("--M", help="In the place of M: symmetric, skew, at_zero, 'rank 8', …")
    ] = None,
    F: Annotated[str | None, typer.Option("--F", help="In the place of F: symmetric, 'rank 8', …")] = None,
    each: Annotated[bool, typer.Option("--each", help="Every head alone, one after the other.")] = False,
    draws: Annotated[int, typer.Option(min=1, max=10_000, help="Random controls of each kind.")] = 1,
    first: First = None,
    model: ModelName = None,
    explain: Explain = False,
    json: Json = None,
    csv: Csv = None,
    html: Html = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """What another M (QK circuit) or F (OV circuit) costs: the loss under the change, beside random changes and ablations.

    Examples:  rheoscope surgery "The keys to the cabinet are on the table" --heads 2.1,3.2 --M symmetric
    ·    rheoscope surgery --file notes.txt --model gpt2 --M "rank 8" --json cost.json
    """
    from rheoscope.covers.comparison_arms import COMPARISONS, SIZE_MATCHED, Against
    from rheoscope.report import run_report
    from rheoscope.report.input_text import resolve_text
    from rheoscope.report.long_texts import truncate_text
    from rheoscope.report.parse_options import parse_heads
    from rheoscope.report.progress_bars import load_model
    from rheoscope.report.report_plans import REPORTS
    from rheoscope.shapes import RheoscopeError

    input_text, files = resolve_text(text, file, first), run_report.OutputFiles(json, csv, html, file)
    if M is None and F is None:
        raise RheoscopeError("nothing to change; type --M symmetric or --F symmetric")
    network = load_model(model, device, dtype)
    against = Against(SIZE_MATCHED.names if each else COMPARISONS, draws=draws)
    options = {"heads": parse_heads(heads, network.view), "M": M, "F": F, "each": each, "against": against}
    run_report.run_report(
        REPORTS["surgery"], network, truncate_text(network, input_text, first), options, files, explain=explain
    )


@app.command("reverse")
def reverse_command(
    text: Text = None,
    file: File = None,
    target: Annotated[
        str | None, typer.Option(help="The token to be said, or its id as #262 (default: the likeliest).")
    ] = None,
    token: Annotated[int, typer.Option(help="After which token, counted from 0; negative from the end.")] = -1,
    first: First = None,
    model: ModelName = None,
    explain: Explain = False,
    json: Json = None,
    csv: Csv = None,
    html: Html = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """How the loss wants attention to change (reversed attention): the heads it pulls at most, and at which tokens.

    Examples:  rheoscope reverse "The keys to the cabinet are" --target " on"    ·    rheoscope reverse --file notes.txt --json pull.json
    """
    from rheoscope.report import run_report
    from rheoscope.report.input_text import resolve_text
    from rheoscope.report.long_texts import truncate_text
    from rheoscope.report.parse_options import parse_token
    from rheoscope.report.progress_bars import load_model
    from rheoscope.report.report_plans import REPORTS

    input_text, files = resolve_text(text, file, first), run_report.OutputFiles(json, csv, html, file)
    network, target_token = load_model(model, device, dtype), None if target is None else parse_token(target)
    options = {"target": target_token, "token": token}
    run_report.run_report(
        REPORTS["reverse"], network, truncate_text(network, input_text, first), options, files, explain=explain
    )


@app.command("costs")
def costs_command(
    model: ModelName = None,
    tokens: Annotated[int, typer.Option(min=1, max=1_000_000, help="Length of the sequence.")] = 2048,
    json: Json = None,
) -> None:
    """What a model costs on so many tokens: FLOPs, bytes, and the length beyond which attention costs most.

    Examples:  rheoscope costs    ·    rheoscope costs --model gpt2 --tokens 1024    ·    rheoscope costs --json costs.json
    """
    from rheoscope.files import check_outputs
    from rheoscope.report.cost_table import show_costs
    from rheoscope.report.progress_bars import load_model

    check_outputs([] if json is None else [json])
    show_costs(load_model(model, None, None), tokens, json)


@app.command("analyses")
def analyses_command() -> None:
    """Every analysis that can be asked: its name, its question, what it needs.

    Examples:  rheoscope analyses
    """
    from rheoscope.commands.analyse import show_catalogue

    show_catalogue()


@app.command(
    "analyse",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def analyse_command(
    context: typer.Context, name: Annotated[str, typer.Argument(help="The name of an analysis.")] = "--help"
) -> None:
    """Any analysis of the catalogue: rheoscope analyse NAME TEXT; its settings are its options (analyse NAME --help).

    Examples:  rheoscope analyse transport "The keys to the cabinet are"    ·    rheoscope analyse composition --model gpt2 --csv tables
    ·    rheoscope analyse fixed_point --file notes.txt --layers 0,3 --json settle.json
    """
    from rheoscope.commands.analyse import build_command, show_usage

    if name in ("-h", "--help"):
        show_usage()
    else:
        build_command(name)(context.args)


def insert_default_command(arguments: list[str]) -> list[str]:
    """What was typed, with `flow` put in where the first word is a text: a first word that is a command is a command.

    A single word that is nearly a command is taken for one, mistyped; after `--` everything is text.

    >>> insert_default_command(["The keys to the cabinet are", "--explain"])
    ['flow', 'The keys to the cabinet are', '--explain']
    """
    command_names = [
        "corpus",
        *(
            registered_command.name or getattr(registered_command.callback, "__name__", "")
            for registered_command in app.registered_commands
        ),
    ]
    first_argument = next(
        (argument for argument in arguments if argument in ("-", "--") or not argument.startswith("-")), None
    )
    if (
        first_argument is None
        or first_argument in command_names
        or (first_argument != "--" and get_close_matches(first_argument, command_names, cutoff=0.75))
    ):
        return arguments
    return ["flow", *arguments]


@app.command("generate")
def generate_command(
    prompt: Annotated[str, typer.Argument(help="What to continue, or to translate; - reads it from stdin.")] = "",
    model: Annotated[
        Path | None,
        typer.Option("--model", "-m", help="A directory that rheoscope train made (default: ships with it)."),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="At most how many tokens.")] = 100,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token each time.")] = 0.8,
    top_k: Annotated[int, typer.Option(min=0, help="Draw among the likeliest so many; 0: among all.")] = 50,
    top_p: Annotated[float | None, typer.Option(help="Draw among the likeliest of together this probability.")] = None,
    seed: Annotated[int, typer.Option(help="Another one gives another text.")] = 0,
    device: Device = None,
) -> None:
    """Continue a text with a model of this project, or translate it where the model is an encoder-decoder.

    Examples:  rheoscope generate "The history of"    ·    rheoscope generate -m run --temperature 0 "Once upon a time"
    """
    from rheoscope.report.generation import generate_text
    from rheoscope.report.input_text import resolve_text

    generate_text(resolve_text(prompt, None), model, tokens, temperature, top_k or None, top_p, seed, device)


app.command("train", cls=VariadicCommand)(train)
app.command("dynamics")(dynamics)
app.command("learned")(learned)
app.command("race", cls=VariadicCommand)(race)
app.command("heal", cls=VariadicCommand)(heal)
app.command("bench")(bench)
app.command("studio")(studio)
app.add_typer(corpus, name="corpus")


def main() -> None:
    """Run the command; a user's mistake is one line on stderr and exit status 1, never a stack trace."""
    replace_unencodable(sys.stdout, sys.stderr)
    # imports make half a million objects that stay: a search takes as long as an analysis
    gc.set_threshold(1_000_000, 10, 10)
    try:
        app(insert_default_command(sys.argv[1:]))
    except Exception as error:
        # Imported late: the error lives beside torch, which `rheoscope --help` does not need.
        from rheoscope.shapes import RheoscopeError

        if not isinstance(error, RheoscopeError):
            raise
        from rheoscope.messages.catalogue import render

        print(f"rheoscope: {render(error.on('shell'))}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
