"""Options that several commands share, with their help texts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rheoscope.commands.completion import complete_from, device_names, dtype_names
from rheoscope.commands.usage import UsageProblem
from rheoscope.messages.message import Message
from rheoscope.report.hub_cache import cached_hub_names

if TYPE_CHECKING:
    from rheoscope.report.input_media import Medium

Text = Annotated[str | None, typer.Argument(help="The text. - reads it from standard input.")]
TargetText = Annotated[
    str | None, typer.Option(metavar="TEXT", help="The target of an encoder-decoder, whose source is the text.")
]
File = Annotated[Path | None, typer.Option(help="Read the text from this file.")]
Image = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Read this image instead of a text. The model must be a model of images."),
]
Audio = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Read this WAV file instead of a text. The model must be a model of sounds."),
]
First = Annotated[int | None, typer.Option(min=1, metavar="N", help="Use only the first N tokens of the text.")]
Window = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Split the text into windows of N tokens and report means with confidence intervals."
    ),
]
Images = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The images of this directory, for a model of images.")
]
Sounds = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The WAV files of this directory, for a model of sounds.")
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="A Hugging Face name or a directory (default: the model that ships with Rheoscope).",
        autocompletion=complete_from(cached_hub_names),
    ),
]
ModelArgument = Annotated[
    str | None,
    typer.Argument(
        help="A Hugging Face name or a directory (default: the model that ships, also named default).",
        autocompletion=complete_from(cached_hub_names),
    ),
]
Adapter = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="The directory or the hub name of a peft adapter, such as LoRA, on the model."),
]
Series = Annotated[
    Path | None,
    typer.Option(
        "--series",
        metavar="DIR",
        help="Run on every checkpoint in this directory (checkpoint-500, checkpoint-1000, …).",
    ),
]
Revisions = Annotated[
    str | None,
    typer.Option(metavar="NAMES", help="Run on these revisions of a hub model, separated by commas: step0,step1000."),
]
Explain = Annotated[bool, typer.Option("--explain", help="Define every column.")]
Fast = Annotated[bool, typer.Option("--fast", help="Skip the null distributions and everything that needs them.")]
Json = Annotated[Path | None, typer.Option(help="Write every number to this file.")]
Csv = Annotated[
    Path | None, typer.Option(help="Write one table per set of dimensions into this directory, with definitions.")
]
Html = Annotated[Path | None, typer.Option(help="Write a page with all plots to this file.")]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, … (default: cpu).", autocompletion=complete_from(device_names))
]
TrainingDevice = Annotated[
    str | None,
    typer.Option(help="cpu, cuda, … (default: cuda if available).", autocompletion=complete_from(device_names)),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="float32, bfloat16, float16 or float64 (default: float32 on the CPU).",
        autocompletion=complete_from(dtype_names),
    ),
]
Stream = Annotated[
    bool | None,
    typer.Option(
        "--stream/--no-stream",
        help="Keep one block of the model in memory and read the others from its files (default: if they do not fit).",
    ),
]
Untrained = Annotated[bool, typer.Option("--untrained", help="Compare with the same architecture at initial weights.")]
Workers = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Number of Ray workers. 0 runs in this process (default: one per GPU, or 0 with fewer than 2 GPUs).",
    ),
]
Address = Annotated[str | None, typer.Option(help="Address of a Ray cluster (default: this machine).")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads per worker (default: the cores, divided equally).")]


def refuse_both(option: str, is_given: bool, other: str, is_other_given: bool) -> None:
    """Raise if two options that exclude each other are both given."""
    if is_given and is_other_given:
        raise UsageProblem(
            Message("{option} and {other} exclude each other", option=option, other=other),
            Message("{option} or {other}", option=option, other=other),
        )


def one_medium(image: Path | None, audio: Path | None, **text_options: Any) -> "Medium | None":
    """The file of --image or --audio, if one is given. Raises if it is combined with the other one or with options for texts.

    A sound may have a target, if the model is an encoder-decoder of sounds.
    """
    from rheoscope.report.input_media import media_of

    refuse_both("--image", image is not None, "--audio", audio is not None)
    for medium in media_of(image, audio):
        for name, value in text_options.items():
            is_given = value is not None and value is not False and not (name == "target" and audio is not None)
            refuse_both(medium.option, True, "TEXT" if name == "text" else f"--{name}", is_given)
        return medium
    return None


def split_names(text: str) -> list[str]:
    """The names in a list with commas.

    >>> split_names("tied, metric")
    ['tied', 'metric']
    """
    return [name.strip() for name in text.split(",") if name.strip()]
