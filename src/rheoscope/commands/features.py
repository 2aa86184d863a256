"""`rheoscope features train|measure|map`: sparse dictionaries, their quality, and what heads do with them."""

from pathlib import Path
from typing import Annotated

import typer

from rheoscope.commands.command_group import CommandGroup
from rheoscope.commands.options import Csv, Device, Json, ModelName
from rheoscope.commands.variadic_options import VariadicCommand

features = typer.Typer(
    cls=CommandGroup,
    help="Sparse features: train a dictionary, measure it, and see what a head does with it.",
)

Dictionary = Annotated[
    str, typer.Argument(help="A directory in the layout of SAELens or dictionary_learning, or default.")
]
Data = Annotated[list[Path], typer.Option(help="Text files to train on: plain, .gz or MediaWiki dumps.")]
OutDirectory = Annotated[Path, typer.Option(metavar="DIR", help="The directory of the dictionary.")]
SiteName = Annotated[str, typer.Option(help="Where it reads: L4.resid_post, L4.mlp, L4.attention, …")]
Texts = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="Texts: a file with one per line, or a directory (default: the package's)."),
]


@features.command("train", cls=VariadicCommand)
def train(
    data: Data,
    out: OutDirectory,
    site: SiteName = "L4.resid_post",
    size: Annotated[int, typer.Option(min=1, help="Number of features.")] = 1024,
    k: Annotated[int, typer.Option(min=1, help="Active features per token.")] = 24,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to train on.")] = 300_000,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over these tokens.")] = 5,
    seed: Annotated[int, typer.Option(help="Seed of the order of tokens.")] = 0,
    model: ModelName = None,
    device: Device = None,
) -> None:
    """Train a top-k sparse autoencoder on the points of texts, and measure it.

    Examples:  rheoscope features train --data book.txt --out features    ·    rheoscope features train --model gpt2 --site L6.mlp
    --data wiki.txt --out features --size 4096
    """
    from rheoscope.learn.feature_report import run_training
    from rheoscope.learn.feature_training import FeatureRecipe

    run_training(model, device, data, out, site, FeatureRecipe(size, k, tokens, epochs, seed=seed))


@features.command("measure")
def measure(
    dictionary: Dictionary = "default",
    texts: Texts = None,
    model: ModelName = None,
    device: Device = None,
    json: Json = None,
    csv: Csv = None,
) -> None:
    """Measure a dictionary: explained variance, active features, and the loss with its reconstruction.

    Examples:  rheoscope features measure    ·    rheoscope features measure sae/ --model gpt2 --texts texts.txt
    """
    from rheoscope.learn.feature_report import run_measurement
    from rheoscope.report.run_report import OutputFiles

    run_measurement(model, device, dictionary, texts, OutputFiles(json, csv))


@features.command("map")
def map_features(
    dictionary: Dictionary = "default",
    head: Annotated[str, typer.Option(help="The head as layer.head.")] = "5.1",
    operator: Annotated[str, typer.Option(help="F: what a feature becomes. M: which features match.")] = "F",
    offset: Annotated[int, typer.Option(help="Distance between query and key, for M under rotary positions.")] = 0,
    top: Annotated[int, typer.Option(min=1, max=10_000, help="Number of pairs that are listed.")] = 12,
    draws: Annotated[int, typer.Option(min=0, max=10_000, help="Random rotations of the null. 0 omits it.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the rotations.")] = 0,
    model: ModelName = None,
    device: Device = None,
    json: Json = None,
    csv: Csv = None,
) -> None:
    """List which features a head turns into which (F), or which features of query and key it matches (M).

    Examples:  rheoscope features map --head 5.1    ·    rheoscope features map sae/ --model gpt2 --head 7.3 --operator M --offset 1
    """
    from rheoscope.learn.feature_report import run_map
    from rheoscope.report.run_report import OutputFiles

    settings = {"operator": operator, "offset": offset, "top": top, "draws": draws, "seed": seed}
    run_map(model, device, dictionary, head, settings, OutputFiles(json, csv))
