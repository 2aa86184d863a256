"""`rheoscope train`: train a Transformer by a recipe."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from rheoscope.commands.completion import complete_from, recipe_names, recipe_settings
from rheoscope.commands.options import TrainingDevice
from rheoscope.commands.usage import UsageProblem
from rheoscope.messages.message import Message

RecipeName = Annotated[
    str | None,
    typer.Argument(
        help="The name of a recipe, before any option. --list names them.", autocompletion=complete_from(recipe_names)
    ),
]
Data = Annotated[
    list[Path] | None,
    typer.Option(
        help="Text files (plain, .gz, MediaWiki dumps) or a prepared directory. For translation: SOURCE TARGET."
    ),
]
OutDirectory = Annotated[Path | None, typer.Option(help="Directory of the run. An existing run is resumed.")]
HeldOut = Annotated[
    list[Path] | None, typer.Option(help="Files for evaluation (default: a share of --data, from its end).")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Change the recipe by name=value, such as rate=0.001 projection=tied.",
        autocompletion=complete_from(recipe_settings),
    ),
]
Steps = Annotated[int | None, typer.Option(help="Number of training steps.")]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Also write the log for TensorBoard.")]
Penalty = Annotated[
    list[str] | None,
    typer.Option(help="Add a penalty to the loss: asymmetry=0.1 (of M), residual=0.1 (of every layer)."),
]
ObservedSteps = Annotated[
    str | None, typer.Option("--look", metavar="0,100,…", help="Steps at which the geometry is measured and stored.")
]
MonitorInterval = Annotated[
    int | None,
    typer.Option("--monitor", metavar="STEPS", min=1, help="Check all heads every so many steps, with alarms."),
]
ListRecipes = Annotated[bool, typer.Option("--list", help="List every recipe.")]


def train(
    recipe: RecipeName = None,
    data: Data = None,
    out: OutDirectory = None,
    held_out: HeldOut = None,
    settings: Settings = None,
    steps: Steps = None,
    device: TrainingDevice = None,
    tensorboard: TensorBoard = False,
    penalty: Penalty = None,
    look: ObservedSteps = None,
    monitor: MonitorInterval = None,
    show_list: ListRecipes = False,
) -> None:
    """Train a Transformer by a recipe, or resume a run.

    The same command resumes a stopped run and ends with the same weights.

    Examples:  rheoscope train --list    ·    rheoscope train tiny --data book.txt --out run
    ·    rheoscope train translation --data train.en train.de --out run    ·    rheoscope generate --model run "Once"
    ·    rheoscope train tiny --data book.txt --out run --set projection=tied --look 0,50,200    ·    rheoscope learned run
    ·    rheoscope train tiny --data book.txt --out run --monitor 20    ·    rheoscope studio --runs run
    """
    if not show_list and (recipe is None or out is None):
        raise UsageProblem(
            Message("training needs a recipe and --out"),
            Message("rheoscope train RECIPE --data FILE… --out DIR, or rheoscope train --list"),
        )
    from rheoscope.learn.train_report import ObserverFactory, run_training, show_recipes

    if recipe is None or out is None or show_list:
        show_recipes()
    else:
        observer_factories: list[ObserverFactory] = []
        if look is not None:
            from rheoscope.learn.geometry_over_training import GeometryObserver, parse_steps

            observer_factories.append(partial(GeometryObserver.from_task, parse_steps(look), out))
        if monitor is not None:
            from rheoscope.learn.monitor.monitor_observer import MonitorObserver

            observer_factories.append(partial(MonitorObserver.from_task, monitor, out))
        options = held_out or (), settings or (), steps, device, tensorboard, penalty or ()
        run_training(recipe, data or (), out, *options, observer_factories=observer_factories)
