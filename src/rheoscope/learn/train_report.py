"""`rheoscope train` as a person sees it: recipes in a table, a bar while it learns, one line at the end."""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rheoscope.files import remove_created
from rheoscope.learn.training_time import long_run_warning, measure_flop_rate, pace_reporter
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

ObserverFactory = Callable[[Task, Recipe], Observer]
"""What looks at a model while it learns, once it is known what it learns."""
REPORTED_FIGURES = ("loss", "bits per byte", "perplexity")
"""Held-out figures that are worth a line."""


def recipe_table() -> Table:
    """Every recipe with its size and the first phrase of its page.

    >>> len(recipe_table().rows) == len(RECIPES)
    True
    """
    rows = [
        to_cells([name, parameter_count_text(make_recipe()), (make_recipe.__doc__ or "").split("\n")[0]])
        for name, make_recipe in RECIPES.items()
    ]
    return Table("Recipes", to_cells(["recipe", "parameters", "what it is"]), rows, frozenset({0, 2}))


def parameter_count_text(spec: Recipe) -> str:
    """How many parameters a recipe trains, with the vocabulary it names.

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
    """What `rheoscope train --list` does."""
    terminal = Terminal(console(), [])
    terminal.print_block(recipe_table())
    terminal.print_line("rheoscope train RECIPE --data FILE… --out DIR; --set name=value changes any of it", "dim")


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
    observer_factory: ObserverFactory | None = None,
) -> None:
    """What `rheoscope train` does: prepare the data, train or go on training, say what to type next."""
    changes = dict(parse_setting(text) for text in settings) | ({} if steps is None else {"steps": steps})
    changes |= {"penalty": dict(map(parse_penalty, penalties))} if penalties else {}
    try:
        target_recipe = recipe_by_name(name).with_changes(**changes)
    except RheoscopeError as error:  # what is typed in Python as name=value is typed here behind --set
        raise RheoscopeError(re.sub(r"; type (\w+=)", r"; type --set \1", str(error))) from error
    check_data(name, [*data, *held_out])
    with distributed_process(device) as placement:
        if placement.is_first:
            check_run_directory(out, target_recipe.to_dict())
        try:
            line = _train(name, target_recipe, data, held_out, out, device, tensorboard, placement, observer_factory)
        except KeyboardInterrupt:
            if placement.is_first:
                _log(f"stopped, {training_state.checkpoint_status(out)}; type the same command to go on")
            raise SystemExit(130) from None
    if placement.is_first:
        print(line)


def parse_penalty(text: str) -> tuple[str, float]:
    """A penalty and how strong it is, from `name=number` as a person types it.

    >>> parse_penalty("asymmetry=0.1")
    ('asymmetry', 0.1)
    """
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError as error:
        raise RheoscopeError(f"a penalty is name=number, got {text!r}; type --penalty asymmetry=0.1") from error


def _train(
    name: str,
    target_recipe: Recipe,
    data: Sequence[Path],
    held_out: Sequence[Path],
    out: Path,
    device: str | None,
    tensorboard: bool,
    placement: Process,
    observer_factory: ObserverFactory | None,
) -> str:
    """Prepare, train, and the line that ends it."""
    with preparation_bar(placement.is_first) as on_stage, remove_created(out) if placement.is_first else nullcontext():
        task, tokenizer = load_task(name, target_recipe, data, held_out, out / "data", placement, on_stage)
        task.check(target_recipe)
        observer = None if observer_factory is None else observer_factory(task, target_recipe)
    start_step = training_state.last_checkpoint_step(out)
    report_pace = _make_pace_reporter(target_recipe, start_step, task.vocabulary, placement)
    with training_bar(target_recipe, out, start_step, placement.is_first, tensorboard) as on_figures:
        report_step = lambda step_figures: (on_figures(step_figures), report_pace(step_figures))  # noqa: E731
        figures = train(
            target_recipe, task, out, tokenizer, device, on_progress=report_step, log=_log, observe=observer
        )
    is_finished = start_step == target_recipe.steps
    outcome = f"{out} is finished at step {target_recipe.steps:,}" if is_finished else f"wrote {out}"
    continue_note = f"; --steps {2 * target_recipe.steps} would go on" if is_finished else ""
    return (
        f"{outcome} (held out: {figures_text(figures)}, at step {figures['step']:,}){continue_note}; type "
        f"{next_command(target_recipe, out, tokenizer)}"
    )


def _make_pace_reporter(target_recipe: Recipe, start_step: int, vocabulary: int, placement: Process) -> OnProgress:
    """On a CPU, what tells how long it will take: at once where that is hours, and after a few steps."""
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
    """What to type next: an encoder continues no text, but it can be looked at; what reads no text opens in Python.

    >>> from rheoscope.models.recipes import encoder, tiny
    >>> text = Path("tokenizer.json")
    >>> next_command(tiny(), Path("run"), text), next_command(encoder(), Path("run"), text), next_command(encoder(), Path("run"), None)
    ('rheoscope generate --model run "…"', 'rheoscope "…" --model run', "rheoscope.load('run') in Python")
    """
    quoted_path = shlex.quote(str(out))
    if tokenizer is None:
        return f"rheoscope.load({str(out)!r}) in Python"
    return (
        f'rheoscope "…" --model {quoted_path}'
        if trained_recipe.config.form == "encoder"
        else f'rheoscope generate --model {quoted_path} "…"'
    )


def figures_text(figures: Metrics) -> str:
    """Held-out figures in words.

    >>> figures_text({"loss": 1.23456, "step": 7, "bits per byte": 2.5})
    'loss 1.2346, bits per byte 2.5000'
    """
    return ", ".join(f"{name} {figures[name]:.4f}" for name in REPORTED_FIGURES if name in figures)


def _log(line: str) -> None:
    console(stderr=True).print(line, soft_wrap=True)


@contextmanager
def _progress_bar(visible: bool, *columns: Any) -> Iterator["Progress"]:
    """A bar on stderr where a person looks at it, nothing where it is piped."""
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
    """A bar while a corpus is prepared."""
    from rich.progress import BarColumn, TextColumn

    with _progress_bar(visible, TextColumn("{task.description}", markup=False), BarColumn()) as progress:
        task_id = progress.add_task("", total=1.0, visible=False)
        yield lambda stage, fraction: progress.update(task_id, description=stage, completed=fraction, visible=True)


@contextmanager
def training_bar(
    target_recipe: Recipe, out: Path, start_step: int, visible: bool, tensorboard: bool
) -> Iterator[OnProgress]:
    """A bar while a model learns, a line above it for every held-out figure; the same figures to TensorBoard if asked."""
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

    writer = tensorboard_writer(out, start_step) if tensorboard and visible else None
    steps_column, facts_column = (
        TextColumn("step {task.completed:,.0f} of {task.total:,.0f}"),
        TextColumn("{task.description}", markup=False),
    )
    with _progress_bar(visible, steps_column, BarColumn(), facts_column, TimeRemainingColumn()) as bar:
        task_id = bar.add_task("", total=target_recipe.steps, completed=start_step)

        def on_figures(figures: Metrics) -> None:
            tokens_per_second = (bar.tasks[task_id].speed or 0) * target_recipe.batch * target_recipe.context
            description = (
                f"loss {figures['train loss']:.3f} · {tokens_per_second:,.0f} tokens/s"
                if "train loss" in figures
                else None
            )
            bar.update(task_id, completed=figures["step"], description=description)
            if "loss" in figures and not bar.disable:
                bar.console.print(f"step {figures['step']:,}: held out {figures_text(figures)}")
            if "loss" in figures and writer is not None:
                record_figures(writer, figures)

        yield on_figures
    if writer is not None:
        writer.close()


def record_figures(writer: Any, figures: Metrics) -> None:
    """A line of the log as TensorBoard keeps it."""
    for name, value in figures.items():
        if name != "step":
            writer.add_scalar(name, value, int(figures["step"]))


def tensorboard_writer(out: Path, start_step: int) -> Any:
    """Where TensorBoard looks: `tensorboard --logdir OUT`; what a killed run wrote after its last checkpoint is dropped."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise RheoscopeError("--tensorboard needs a package; type pip install 'rheoscope[train]'") from error
    return SummaryWriter(str(out / "tensorboard"), purge_step=start_step + 1)
