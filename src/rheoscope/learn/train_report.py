"""`rheoscope train` as a person sees it: recipes in a table, a bar while it learns, one line at the end."""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rheoscope.files import undone
from rheoscope.learn.training_time import beforehand, speed, telling_pace
from rheoscope.models import training_state
from rheoscope.models.corpus_sources import check_data, task_for
from rheoscope.models.recipes import RECIPES, Recipe, recipe, setting
from rheoscope.models.run_directory import check_out
from rheoscope.models.task import Task
from rheoscope.models.train import Figures, Look, Place, Tell, placed, train
from rheoscope.picture.blocks import Table, cells
from rheoscope.report.console import console
from rheoscope.report.terminal import Terminal
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    from rich.progress import Progress

Looks = Callable[[Task, Recipe], Look]
"""What looks at a model while it learns, once it is known what it learns."""
SHOWN = ("loss", "bits per byte", "perplexity")
"""Held-out figures that are worth a line."""


def recipe_table() -> Table:
    """Every recipe with its size and the first phrase of its page.

    >>> len(recipe_table().rows) == len(RECIPES)
    True
    """
    rows = [cells([name, millions(made()), (made.__doc__ or "").split("\n")[0]]) for name, made in RECIPES.items()]
    return Table("Recipes", cells(["recipe", "parameters", "what it is"]), rows, frozenset({0, 2}))


def millions(of: Recipe) -> str:
    """How many parameters a recipe trains, with the vocabulary it names.

    >>> from rheoscope.models.recipes import gpt2
    >>> millions(gpt2())
    '124M'
    """
    import torch

    from rheoscope.models.transformer import build, parameter_count

    with torch.device("meta"):
        count = parameter_count(build(of.config)) / 1e6
    return f"{count:.0f}M" if count >= 20 else f"{count:.3g}M"


def show_recipes() -> None:
    """What `rheoscope train --list` does."""
    terminal = Terminal(console(), [])
    terminal.show(recipe_table())
    terminal.line("rheoscope train RECIPE --data FILE… --out DIR; --set name=value changes any of it", "dim")


def show(
    name: str,
    data: Sequence[Path],
    out: Path,
    held_out: Sequence[Path] = (),
    settings: Sequence[str] = (),
    steps: int | None = None,
    device: str | None = None,
    tensorboard: bool = False,
    penalties: Sequence[str] = (),
    looks: Looks | None = None,
) -> None:
    """What `rheoscope train` does: prepare the data, train or go on training, say what to type next."""
    changes = dict(setting(told) for told in settings) | ({} if steps is None else {"steps": steps})
    changes |= {"penalty": dict(map(strength, penalties))} if penalties else {}
    try:
        wanted = recipe(name).but(**changes)
    except RheoscopeError as error:  # what is typed in Python as name=value is typed here behind --set
        raise RheoscopeError(re.sub(r"; type (\w+=)", r"; type --set \1", str(error))) from error
    check_data(name, [*data, *held_out])
    with placed(device) as place:
        if place.first:
            check_out(out, wanted.told())
        try:
            line = _trained(name, wanted, data, held_out, out, device, tensorboard, place, looks)
        except KeyboardInterrupt:
            if place.first:
                _say(f"stopped, {training_state.kept(out)}; type the same command to go on")
            raise SystemExit(130) from None
    if place.first:
        print(line)


def strength(told: str) -> tuple[str, float]:
    """A penalty and how strong it is, from `name=number` as a person types it.

    >>> strength("asymmetry=0.1")
    ('asymmetry', 0.1)
    """
    name, _, value = told.partition("=")
    try:
        return name, float(value)
    except ValueError as error:
        raise RheoscopeError(f"a penalty is name=number, got {told!r}; type --penalty asymmetry=0.1") from error


def _trained(
    name: str,
    wanted: Recipe,
    data: Sequence[Path],
    held_out: Sequence[Path],
    out: Path,
    device: str | None,
    tensorboard: bool,
    place: Place,
    looks: Looks | None,
) -> str:
    """Prepare, train, and the line that ends it."""
    with preparing(place.first) as told, undone(out) if place.first else nullcontext():
        task, tokenizer = task_for(name, wanted, data, held_out, out / "data", place, told)
        task.check(wanted)
        look = None if looks is None else looks(task, wanted)
    begun = training_state.kept_step(out)
    pace = _pace(wanted, begun, task.vocabulary, place)
    with learning(wanted, out, begun, place.first, tensorboard) as tell:
        hear = lambda one: (tell(one), pace(one))  # noqa: E731
        figures = train(wanted, task, out, tokenizer, device, tell=hear, say=_say, look=look)
    finished = begun == wanted.steps
    did = f"{out} is finished at step {wanted.steps:,}" if finished else f"wrote {out}"
    more = f"; --steps {2 * wanted.steps} would go on" if finished else ""
    return f"{did} (held out: {described(figures)}, at step {figures['step']:,}){more}; type {next_words(wanted, out, tokenizer)}"


def _pace(wanted: Recipe, begun: int, vocabulary: int, place: Place) -> Tell:
    """On a CPU, what tells how long it will take: at once where that is hours, and after a few steps."""
    if place.device.type != "cpu" or not place.first:
        return lambda figures: None
    warning = beforehand(replace(wanted, config=wanted.config.but(vocabulary=vocabulary)), begun, speed())
    if warning:
        _say(warning)
    return telling_pace(wanted, begun, _say)


def next_words(trained: Recipe, out: Path, tokenizer: Path | None) -> str:
    """What to type next: an encoder continues no text, but it can be looked at; what reads no text opens in Python.

    >>> from rheoscope.models.recipes import encoder, tiny
    >>> text = Path("tokenizer.json")
    >>> next_words(tiny(), Path("run"), text), next_words(encoder(), Path("run"), text), next_words(encoder(), Path("run"), None)
    ('rheoscope generate --model run "…"', 'rheoscope "…" --model run', "rheoscope.load('run') in Python")
    """
    named = shlex.quote(str(out))
    if tokenizer is None:
        return f"rheoscope.load({str(out)!r}) in Python"
    return (
        f'rheoscope "…" --model {named}'
        if trained.config.form == "encoder"
        else f'rheoscope generate --model {named} "…"'
    )


def described(figures: Figures) -> str:
    """Held-out figures in words.

    >>> described({"loss": 1.23456, "step": 7, "bits per byte": 2.5})
    'loss 1.2346, bits per byte 2.5000'
    """
    return ", ".join(f"{name} {figures[name]:.4f}" for name in SHOWN if name in figures)


def _say(line: str) -> None:
    console(stderr=True).print(line, soft_wrap=True)


@contextmanager
def _bar(shown: bool, *columns: Any) -> Iterator["Progress"]:
    """A bar on stderr where a person looks at it, nothing where it is piped."""
    from rich.progress import Progress

    where = console(stderr=True)
    with Progress(
        *columns, console=where, transient=True, refresh_per_second=4, disable=not (shown and where.is_terminal)
    ) as progress:
        yield progress


@contextmanager
def preparing(shown: bool) -> Iterator[Callable[[str, float], None]]:
    """A bar while a corpus is prepared."""
    from rich.progress import BarColumn, TextColumn

    with _bar(shown, TextColumn("{task.description}", markup=False), BarColumn()) as progress:
        bar = progress.add_task("", total=1.0, visible=False)
        yield lambda stage, share: progress.update(bar, description=stage, completed=share, visible=True)


@contextmanager
def learning(wanted: Recipe, out: Path, begun: int, shown: bool, tensorboard: bool) -> Iterator[Tell]:
    """A bar while a model learns, a line above it for every held-out figure; the same figures to TensorBoard if asked."""
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

    writer = events(out, begun) if tensorboard and shown else None
    steps, facts = (
        TextColumn("step {task.completed:,.0f} of {task.total:,.0f}"),
        TextColumn("{task.description}", markup=False),
    )
    with _bar(shown, steps, BarColumn(), facts, TimeRemainingColumn()) as bar:
        task = bar.add_task("", total=wanted.steps, completed=begun)

        def tell(figures: Figures) -> None:
            speed = (bar.tasks[task].speed or 0) * wanted.batch * wanted.context
            facts = f"loss {figures['train loss']:.3f} · {speed:,.0f} tokens/s" if "train loss" in figures else None
            bar.update(task, completed=figures["step"], description=facts)
            if "loss" in figures and not bar.disable:
                bar.console.print(f"step {figures['step']:,}: held out {described(figures)}")
            if "loss" in figures and writer is not None:
                record(writer, figures)

        yield tell
    if writer is not None:
        writer.close()


def record(writer: Any, figures: Figures) -> None:
    """A line of the log as TensorBoard keeps it."""
    for name, value in figures.items():
        if name != "step":
            writer.add_scalar(name, value, int(figures["step"]))


def events(out: Path, begun: int) -> Any:
    """Where TensorBoard looks: `tensorboard --logdir OUT`; what a killed run wrote after its last checkpoint is dropped."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise RheoscopeError("--tensorboard needs a package; type pip install 'rheoscope[train]'") from error
    return SummaryWriter(str(out / "tensorboard"), purge_step=begun + 1)
