"""The commands `rheoscope train`, `rheoscope learned` and `rheoscope heal`: what is typed behind them."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from rheoscope.commands.options import Csv, Device, Explain, Html, Json, ModelName

RecipeName = Annotated[str | None, typer.Argument(help="The name of a recipe, before any option; see --list.")]
Data = Annotated[
    list[Path] | None,
    typer.Option(help="Text files (plain, .gz, MediaWiki dumps) or a prepared directory; to translate: SOURCE TARGET."),
]
OutDirectory = Annotated[Path | None, typer.Option(help="Directory of the run; a run that is there goes on.")]
HeldOut = Annotated[
    list[Path] | None, typer.Option(help="Files to measure on (default: a share of --data, at the end).")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Change the recipe: name=value, as rate=0.001 projection=tied.")
]
Steps = Annotated[int | None, typer.Option(help="How many steps.")]
DeviceName = Annotated[str | None, typer.Option(help="cpu, cuda, … (default: cuda where there is one).")]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Also write the log for TensorBoard.")]
Penalty = Annotated[
    list[str] | None,
    typer.Option(help="Keep small besides the loss: asymmetry=0.1 (of M), residual=0.1 (of every layer)."),
]
ObservedSteps = Annotated[
    str | None, typer.Option("--look", metavar="0,100,…", help="Steps at which its geometry is looked at and kept.")
]
ListRecipes = Annotated[bool, typer.Option("--list", help="Show every recipe.")]
RunDirectory = Annotated[Path, typer.Argument(help="The directory of a run that was trained with --look.")]
TextFiles = Annotated[list[Path], typer.Option(help="Text files to fine-tune on; the last windows are held out.")]
ArmsFolder = Annotated[Path, typer.Option(help="The folder of the arms; those that are there are not trained again.")]
Arms = Annotated[
    str | None,
    typer.Option(metavar="A,B,…", help="Some of symmetric, symmetric_kept, size, cloud, spectrum (default: all)."),
]
PositiveCount = Annotated[int, typer.Option(min=1)]


def train(
    recipe: RecipeName = None,
    data: Data = None,
    out: OutDirectory = None,
    held_out: HeldOut = None,
    settings: Settings = None,
    steps: Steps = None,
    device: DeviceName = None,
    tensorboard: TensorBoard = False,
    penalty: Penalty = None,
    look: ObservedSteps = None,
    listed: ListRecipes = False,
) -> None:
    """Train a Transformer by a recipe; the same command again goes on where it was stopped, to the same weights.

    Examples:  rheoscope train --list    ·    rheoscope train tiny --data book.txt --out run
    ·    rheoscope train translation --data train.en train.de --out run    ·    rheoscope generate --model run "Once"
    ·    rheoscope train tiny --data book.txt --out run --set projection=tied --look 0,50,200    ·    rheoscope learned run
    """
    from rheoscope.learn.train_report import run_training, show_recipes

    if listed:
        show_recipes()
    elif recipe is None or out is None:
        raise typer.BadParameter("type rheoscope train RECIPE --data FILE… --out DIR, or --list for the recipes")
    else:
        observer_factory = None
        if look is not None:
            from rheoscope.learn.geometry_over_training import GeometryObserver, parse_steps

            observed_steps, folder = parse_steps(look), out
            observer_factory = partial(GeometryObserver.from_task, observed_steps, folder)
        options = held_out or (), settings or (), steps, device, tensorboard, penalty or ()
        run_training(recipe, data or (), out, *options, observer_factory=observer_factory)


def learned(run: RunDirectory, json: Json = None, csv: Csv = None, html: Html = None, explain: Explain = False) -> None:
    """How geometry formed while a model learned: what was seen at the steps of --look, each number beside what chance gives.

    Examples:  rheoscope train tiny --data book.txt --out run --look 0,50,200    ·    rheoscope learned run --html learned.html
    """
    from rheoscope.learn.geometry_report import show_learned
    from rheoscope.report.run_report import OutputFiles

    show_learned(run, OutputFiles(json, csv, html), explain)


def heal(
    data: TextFiles,
    out: ArmsFolder,
    model: ModelName = None,
    arms: Arms = None,
    steps: PositiveCount = 200,
    batch: PositiveCount = 8,
    length: PositiveCount = 256,
    rate: Annotated[float, typer.Option(help="Of AdamW, without decay.")] = 5e-5,
    every: Annotated[int, typer.Option(min=1, help="Steps between two measurements.")] = 20,
    held_out: Annotated[int, typer.Option(min=1, help="Windows to measure on.")] = 32,
    seed: int = 0,
    device: Device = None,
    json: Json = None,
    csv: Csv = None,
    html: Html = None,
    explain: Explain = False,
) -> None:
    """Make every M of a model symmetric, then fine-tune: how many tokens until its loss is back, beside random changes and none?

    Examples:  rheoscope heal --data book.txt --out healing    ·    rheoscope heal --model HuggingFaceTB/SmolLM2-135M --data wiki.txt
    --out healing --device cuda --steps 500 --length 512
    """
    from rheoscope.learn.healing import HealingSettings
    from rheoscope.learn.healing_report import run_healing
    from rheoscope.report.run_report import OutputFiles

    healing_settings = HealingSettings(steps, batch, length, rate, every, held_out, seed)
    run_healing(
        model,
        device,
        data,
        out,
        healing_settings,
        None if arms is None else arms.split(","),
        OutputFiles(json, csv, html),
        explain,
    )
