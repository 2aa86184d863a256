"""The command `rheoscope train`: the table of recipes, a progress bar during training, and one line at the end."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rheoscope.files import remove_created
from rheoscope.learn.training_time import long_run_warning, measure_flop_rate, pace_reporter
from rheoscope.messages.advice import Advice
from rheoscope.messages.catalogue import render
from rheoscope.messages.message import Message, join
from rheoscope.models import training_state
from rheoscope.models.corpus_sources import check_data, load_task
from rheoscope.models.recipes import RECIPES, Recipe, parse_setting, recipe_by_name
from rheoscope.models.run_directory import check_run_directory
from rheoscope.models.task import Task
from rheoscope.models.train import Metrics, Observer, OnProgress, Process, distributed_process, train
from rheoscope.picture.blocks import Table, to_cells
from rheoscope.report.console import console
from rheoscope.report.terminal import Terminal
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    from rich.progress import Progress
    from torch import nn

ObserverFactory = Callable[[Task, Recipe], Observer]
"""Creates the observer of a run once its task and recipe are known."""
REPORTED_FIGURES = {
    "loss": Message("loss"),
    "bits per byte": Message("bits per byte"),
    "perplexity": Message("perplexity"),
}
"""Held-out metrics that are printed, with their labels."""


def recipe_table() -> Table:
    """Every recipe with its number of parameters and the first line of its docstring.

    >>> len(recipe_table().rows) == len(RECIPES)
    True
    """
    rows = [
        to_cells([name, parameter_count_text(make_recipe()), (make_recipe.__doc__ or "").split("\n")[0]])
        for name, make_recipe in RECIPES.items()
    ]
    header = to_cells([Message("recipe"), Message("parameters"), Message("description")])
    return Table(Message("Recipes"), header, rows, frozenset({0, 2}))


def parameter_count_text(spec: Recipe) -> str:
    """The number of parameters of a recipe, with the vocabulary that it names.

    >>> from rheoscope.models.recipes import gpt2
    >>> parameter_count_text(gpt2())
    '124M'
    """
    import torch

    from rheoscope.models.transformer import build, parameter_count

    with torch.device("meta"):
        count = parameter_count(build(spec.config)) / 1e6
    return f"{count:.0f}M" if count >= 20 else f"{count:.3g}M"


def show_recipes() -> None:
    """Run `rheoscope train --list`."""
    terminal = Terminal(console(), [])
    terminal.print_block(recipe_table())
    terminal.print_line(
        Message("Type rheoscope train RECIPE --data FILE… --out DIR. --set name=value changes any setting."), "dim"
    )


def run_training(
    name: str,
    data: Sequence[Path],
    out: Path,
    held_out: Sequence[Path] = (),
    settings: Sequence[str] = (),
    steps: int | None = None,
    device: str | None = None,
    tensorboard: bool = False,
    penalties: Sequence[str] = (),
    observer_factories: Sequence[ObserverFactory] = (),
) -> None:
    """Run `rheoscope train`: prepare the data, start or continue training, and print the next command."""
    changes = dict(parse_setting(text) for text in settings) | ({} if steps is None else {"steps": steps})
    changes |= {"penalty": dict(map(parse_penalty, penalties))} if penalties else {}
    target_recipe = recipe_by_name(name).with_changes(**changes)
    check_data(name, [*data, *held_out])
    with distributed_process(device) as placement:
        if placement.is_first:
            check_run_directory(out, target_recipe.to_dict())
        try:
            line = _train(name, target_recipe, data, held_out, out, device, tensorboard, placement, observer_factories)
        except KeyboardInterrupt:
            if placement.is_first:
                status = training_state.checkpoint_status(out)
                _log(Message("stopped: {status}; run the same command to continue", status=status))
            raise SystemExit(130) from None
    if placement.is_first:
        print(render(line))


def parse_penalty(text: str) -> tuple[str, float]:
    """The name and strength of a penalty, from `name=number`.

    >>> parse_penalty("asymmetry=0.1")
    ('asymmetry', 0.1)
    """
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError as error:
        raise RheoscopeError(
            Message("a penalty has the form NAME=NUMBER, got {penalty!r}", penalty=text),
            Advice("penalty={'asymmetry': 0.1}", "--penalty asymmetry=0.1"),
        ) from error


def _train(
    name: str,
    target_recipe: Recipe,
    data: Sequence[Path],
    held_out: Sequence[Path],
    out: Path,
    device: str | None,
    tensorboard: bool,
    placement: Process,
    observer_factories: Sequence[ObserverFactory],
) -> Message:
    """Prepare the data, train, and return the final line."""
    with preparation_bar(placement.is_first) as on_stage, remove_created(out) if placement.is_first else nullcontext():
        task, tokenizer = load_task(name, target_recipe, data, held_out, out / "data", placement, on_stage)
        task.check(target_recipe)
        observers = [make_observer(task, target_recipe) for make_observer in observer_factories]
    start_step = training_state.last_checkpoint_step(out)
    report_pace = _make_pace_reporter(target_recipe, start_step, task.vocabulary, placement)
    with training_bar(target_recipe, out, start_step, placement.is_first, tensorboard) as on_figures:
        report_step = lambda step_figures: (on_figures(step_figures), report_pace(step_figures))  # noqa: E731
        figures = train(
            target_recipe, task, out, tokenizer, device, on_progress=report_step, log=_log, observe=call_all(observers)
        )
    facts = {"out": str(out), "figures": figures_text(figures), "step": figures["step"]}
    command = next_command(target_recipe, out, tokenizer)
    if start_step < target_recipe.steps:
        return Message("wrote {out} (held out: {figures}, at step {step:,}); type {command}", command=command, **facts)
    return Message(
        "{out} is finished at step {last:,} (held out: {figures}, at step {step:,}); type {command}, or --steps {more} to train "
        "longer",
        command=command,
        last=target_recipe.steps,
        more=2 * target_recipe.steps,
        **facts,
    )


def call_all(observers: Sequence[Observer]) -> Observer | None:
    """One observer that calls all; None if there are none, since any observer costs time on a GPU."""
    if not observers:
        return None

    def observe(step: int, model: "nn.Module") -> None:
        for observer in observers:
            observer(step, model)

    return observe


def _make_pace_reporter(target_recipe: Recipe, start_step: int, vocabulary: int, placement: Process) -> OnProgress:
    """On a CPU, report how long the run will take: at once if it takes hours, and again after a few steps."""
    if placement.device.type != "cpu" or not placement.is_first:
        return lambda figures: None
    warning = long_run_warning(
        replace(target_recipe, config=target_recipe.config.with_changes(vocabulary=vocabulary)),
        start_step,
        measure_flop_rate(),
    )
    if warning:
        _log(warning)
    return pace_reporter(target_recipe, start_step, _log)


def next_command(trained_recipe: Recipe, out: Path, tokenizer: Path | None) -> str:
    """The next command: generate text, analyse a text, or open the model in Python.

    >>> from rheoscope.models.recipes import encoder, tiny
    >>> tokenizer = Path("tokenizer.json")
    >>> next_command(tiny(), Path("run"), tokenizer), next_command(encoder(), Path("run"), tokenizer)
    ('rheoscope generate --model run "…"', 'rheoscope "…" --model run')
    >>> next_command(encoder(), Path("run"), None)
    "rheoscope.load('run') in Python"
    """
    quoted_path = shlex.quote(str(out))
    if tokenizer is None:
        return Message("rheoscope.load({path!r}) in Python", path=str(out))
    return (
        f'rheoscope "…" --model {quoted_path}'
        if trained_recipe.config.form == "encoder"
        else f'rheoscope generate --model {quoted_path} "…"'
    )


def figures_text(figures: Metrics) -> Message:
    """Held-out metrics as text.

    >>> figures_text({"loss": 1.23456, "step": 7, "bits per byte": 2.5})
    'loss 1.2346, bits per byte 2.5000'
    """
    present = {label: figures[name] for name, label in REPORTED_FIGURES.items() if name in figures}
    return join(", ", [Message("{label} {value:.4f}", label=label, value=value) for label, value in present.items()])


def _log(line: str) -> None:
    console(stderr=True).print(render(line), soft_wrap=True)


@contextmanager
def _progress_bar(visible: bool, *columns: Any) -> Iterator["Progress"]:
    """A progress bar on stderr if that is a terminal, otherwise nothing."""
    from rich.progress import Progress

    stderr_console = console(stderr=True)
    with Progress(
        *columns,
        console=stderr_console,
        transient=True,
        refresh_per_second=4,
        disable=not (visible and stderr_console.is_terminal),
    ) as progress:
        yield progress


@contextmanager
def preparation_bar(visible: bool) -> Iterator[Callable[[str, float], None]]:
    """A progress bar while a corpus is prepared."""
    from rich.progress import BarColumn, TextColumn

    with _progress_bar(visible, TextColumn("{task.description}", markup=False), BarColumn()) as progress:
        task_id = progress.add_task("", total=1.0, visible=False)
        yield lambda stage, fraction: progress.update(
            task_id, description=render(stage), completed=fraction, visible=True
        )


@contextmanager
def training_bar(
    target_recipe: Recipe, out: Path, start_step: int, visible: bool, tensorboard: bool
) -> Iterator[OnProgress]:
    """A progress bar during training, with a line above it for every evaluation.

    Optionally writes the same metrics to TensorBoard.
    """
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

    writer = tensorboard_writer(out, start_step) if tensorboard and visible else None
    steps_text = Message("step {step} of {steps}", step="{task.completed:,.0f}", steps="{task.total:,.0f}")
    steps_column, facts_column = TextColumn(render(steps_text)), TextColumn("{task.description}", markup=False)
    with _progress_bar(visible, steps_column, BarColumn(), facts_column, TimeRemainingColumn()) as bar:
        task_id = bar.add_task("", total=target_recipe.steps, completed=start_step)

        def on_figures(figures: Metrics) -> None:
            tokens_per_second = (bar.tasks[task_id].speed or 0) * target_recipe.batch * target_recipe.context
            description = (
                Message("loss {loss:.3f}, {speed:,.0f} tokens/s", loss=figures["train loss"], speed=tokens_per_second)
                if "train loss" in figures
                else None
            )
            bar.update(task_id, completed=figures["step"], description=description and render(description))
            if "loss" in figures and not bar.disable:
                line = Message("step {step:,}: held-out {figures}", step=figures["step"], figures=figures_text(figures))
                bar.console.print(render(line))
            if "loss" in figures and writer is not None:
                record_figures(writer, figures)

        yield on_figures
    if writer is not None:
        writer.close()


def record_figures(writer: Any, figures: Metrics) -> None:
    """Write a line of the log to TensorBoard."""
    for name, value in figures.items():
        if name != "step":
            writer.add_scalar(name, value, int(figures["step"]))


def tensorboard_writer(out: Path, start_step: int) -> Any:
    """A TensorBoard writer for `tensorboard --logdir OUT`.

    Entries after the last checkpoint of a killed run are dropped.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise RheoscopeError(
            Message("--tensorboard needs the package tensorboard"), Advice("", "pip install 'rheoscope[train]'")
        ) from error
    return SummaryWriter(str(out / "tensorboard"), purge_step=start_step + 1)
