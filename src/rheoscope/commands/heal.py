"""`rheoscope heal`: make every M symmetric, then measure how much fine-tuning restores the loss."""

from pathlib import Path
from typing import Annotated

import typer

from rheoscope.commands.completion import complete_list_from
from rheoscope.commands.options import Csv, Device, Explain, Html, Json, ModelName, split_names

TextFiles = Annotated[list[Path], typer.Option(help="Text files to fine-tune on. The last windows are held out.")]
ArmsFolder = Annotated[Path, typer.Option(help="The folder of the arms. Finished arms are not trained again.")]
ARM_NAMES = ["symmetric", "symmetric_kept", "size", "cloud", "spectrum"]
Arms = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,…",
        help="Some of symmetric, symmetric_kept, size, cloud, spectrum (default: all).",
        autocompletion=complete_list_from(lambda: ARM_NAMES),
    ),
]


def heal(
    data: TextFiles,
    out: ArmsFolder,
    model: ModelName = None,
    arms: Arms = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps per arm.")] = 200,
    batch: Annotated[int, typer.Option(min=1, help="Windows per batch.")] = 8,
    length: Annotated[int, typer.Option(min=1, help="Tokens per window.")] = 256,
    rate: Annotated[float, typer.Option(help="Learning rate of AdamW, without weight decay.")] = 5e-5,
    every: Annotated[int, typer.Option(min=1, help="Steps between two measurements.")] = 20,
    held_out: Annotated[int, typer.Option(min=1, help="Windows on which the loss is measured.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of the data order and of the random arms.")] = 0,
    device: Device = None,
    json: Json = None,
    csv: Csv = None,
    html: Html = None,
    explain: Explain = False,
) -> None:
    """Make every M symmetric and fine-tune until the loss recovers.

    It counts the tokens that the model needs, and compares them with random edits and with no edit.

    Examples:  rheoscope heal --data book.txt --out healing    ·    rheoscope heal --model HuggingFaceTB/SmolLM2-135M --data wiki.txt
    --out healing --device cuda --steps 500 --length 512
    """
    from rheoscope.learn.healing import HealingSettings
    from rheoscope.learn.healing_report import run_healing
    from rheoscope.report.run_report import OutputFiles

    healing_settings = HealingSettings(steps, batch, length, rate, every, held_out, seed)
    arm_names = None if arms is None else split_names(arms)
    run_healing(model, device, data, out, healing_settings, arm_names, OutputFiles(json, csv, html), explain)
