"""`rheoscope heal`: make every M symmetric, then measure how much fine-tuning restores the loss."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from rheoscope.commands.completion import complete_list_from
from rheoscope.commands.option_groups import OutputOptions, with_option_groups
from rheoscope.commands.options import Device, ModelName, split_names

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


@dataclass(frozen=True)
class FineTuning:
    """How long and on which windows every arm is fine-tuned."""

    steps: Annotated[int, typer.Option(min=1, help="Training steps per arm.")] = 200
    batch: Annotated[int, typer.Option(min=1, help="Windows per batch.")] = 8
    length: Annotated[int, typer.Option(min=1, help="Tokens per window.")] = 256
    rate: Annotated[float, typer.Option(help="Learning rate of AdamW, without weight decay.")] = 5e-5
    every: Annotated[int, typer.Option(min=1, help="Steps between two measurements.")] = 20
    held_out: Annotated[int, typer.Option(min=1, help="Windows on which the loss is measured.")] = 32
    seed: Annotated[int, typer.Option(help="Seed of the data order and of the random arms.")] = 0


@with_option_groups
def heal(
    data: TextFiles,
    out: ArmsFolder,
    model: ModelName = None,
    arms: Arms = None,
    device: Device = None,
    *,
    training: FineTuning,
    output: OutputOptions,
) -> None:
    """Make every M symmetric and fine-tune until the loss recovers.

    It counts the tokens that the model needs, and compares them with random edits and with no edit.

    Examples:  rheoscope heal --data book.txt --out healing    ·    rheoscope heal --model HuggingFaceTB/SmolLM2-135M --data wiki.txt
    --out healing --device cuda --steps 500 --length 512
    """
    from rheoscope.learn.healing import HealingSettings
    from rheoscope.learn.healing_report import run_healing

    settings = HealingSettings(**asdict(training))
    arm_names = None if arms is None else split_names(arms)
    run_healing(model, device, data, out, settings, arm_names, output.files(), output.explain)
