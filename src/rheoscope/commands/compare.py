"""`rheoscope compare`: what differs between two models."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from rheoscope.commands.completion import complete_from
from rheoscope.commands.option_groups import OutputOptions, with_option_groups
from rheoscope.commands.options import Device, Dtype, Revisions, refuse_both, split_names
from rheoscope.commands.usage import UsageProblem
from rheoscope.messages.message import Message
from rheoscope.report.hub_cache import cached_hub_names

ModelArgument = Annotated[
    str,
    typer.Argument(
        help="A Hugging Face name, a directory, or default for the model that ships.",
        show_default=False,
        autocompletion=complete_from(cached_hub_names),
    ),
]


@dataclass(frozen=True)
class ComparisonSettings:
    """What counts as a difference, and how heads are ranked."""

    threshold: Annotated[
        float, typer.Option(min=0.0, max=2.0, help="The relative distance of points that counts as diverged.")
    ] = 0.1
    top: Annotated[int, typer.Option(min=1, max=10_000, help="How many predicted tokens to list.")] = 5
    rank: Annotated[
        str, typer.Option(help="stream_change, displacement, attention, logit_change, M_distance or F_distance.")
    ] = "stream_change"


@with_option_groups
def compare(
    model_a: ModelArgument,
    model_b: ModelArgument,
    text: Annotated[
        str | None, typer.Argument(help="The text. Without any text, only the weights are compared.")
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option(help="Texts: one per line, a .jsonl file with a field text, or a directory. They give intervals."),
    ] = None,
    adapter: Annotated[
        str | None, typer.Option(metavar="DIR", help="A peft adapter, such as LoRA, on the second model.")
    ] = None,
    revisions: Revisions = None,
    device: Device = None,
    dtype: Dtype = None,
    *,
    settings: ComparisonSettings,
    output: OutputOptions,
) -> None:
    """Find what differs between two models.

    It shows which heads have another M or F, which heads act differently on the same points, after which layer the flows
    diverge, and what each model predicts. Models of different shape are matched by similarity.

    Examples:  rheoscope compare gpt2 path/to/finetuned "The keys to the cabinet are"
    ·    rheoscope compare gpt2 gpt2 --adapter runs/lora --texts notes.txt --html compare.html
    ·    rheoscope compare EleutherAI/pythia-70m EleutherAI/pythia-70m "The keys" --revisions step1000,step143000
    """
    from rheoscope.report.card_texts import read_texts
    from rheoscope.report.compare_models import compare_models
    from rheoscope.report.input_text import check_text, clean_typed_text
    from rheoscope.report.progress_bars import load_model

    refuse_both("--texts", texts is not None, "TEXT", text is not None)
    check_text(text)
    names = [None, None] if revisions is None else split_names(revisions)
    if len(names) != 2:
        raise UsageProblem(
            Message("--revisions needs one name for each of the two models, got {n}", n=len(names)),
            f"rheoscope compare {model_a} {model_b} --revisions step1000,step2000",
        )
    files = output.files(texts, "--texts")
    chosen_texts = read_texts(texts) if texts is not None else None if text is None else [clean_typed_text(text)]
    options = ({"revision": names[0]}, {"revision": names[1], "adapter": adapter})
    models = tuple(
        load_model(source, device, dtype, **more) for source, more in zip((model_a, model_b), options, strict=True)
    )
    compare_models((models[0], models[1]), chosen_texts, asdict(settings), files, output.explain)
