"""`rheoscope features train|measure|map`: sparse dictionaries, their quality, and what heads do with them."""

from pathlib import Path
from typing import Annotated

import typer

from rheoscope.commands.command_group import CommandGroup
from rheoscope.commands.option_groups import ModelOptions, OutputOptions, with_option_groups
from rheoscope.commands.variadic_options import VariadicCommand

features = typer.Typer(
    cls=CommandGroup,
    help="Sparse features: train, measure, map.",
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
@with_option_groups
def train(
    data: Data,
    out: OutDirectory,
    site: SiteName = "L4.resid_post",
    size: Annotated[int, typer.Option(min=1, help="Number of features.")] = 1024,
    k: Annotated[int, typer.Option(min=1, help="Active features per token.")] = 24,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to train on.")] = 300_000,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over these tokens.")] = 5,
    seed: Annotated[int, typer.Option(help="Seed of the order of tokens.")] = 0,
    *,
    model: ModelOptions,
) -> None:
    """Train a top-k sparse autoencoder on the points of texts, and measure it.

    Examples:  rheoscope features train --data book.txt --out features    ·    rheoscope features train --model gpt2 --site L6.mlp
    --data wiki.txt --out features --size 4096
    """
    from rheoscope.learn.feature_report import run_training
    from rheoscope.learn.feature_training import FeatureRecipe

    recipe = FeatureRecipe(size, k, tokens, epochs, seed=seed)
    run_training(model.open, data, out, site, recipe)


@features.command("measure")
@with_option_groups
def measure(
    dictionary: Dictionary = "default",
    texts: Texts = None,
    *,
    model: ModelOptions,
    output: OutputOptions,
) -> None:
    """Measure a dictionary: explained variance, active features, and the loss with its reconstruction.

    Examples:  rheoscope features measure    ·    rheoscope features measure sae/ --model gpt2 --texts texts.txt
    """
    from rheoscope.learn.feature_report import run_measurement

    run_measurement(model.open, dictionary, texts, output.files(), output.explain)


@features.command("map")
@with_option_groups
def map_features(
    dictionary: Dictionary = "default",
    head: Annotated[str, typer.Option(help="The head as layer.head.")] = "5.1",
    operator: Annotated[str, typer.Option(help="F: what a feature becomes. M: which features match.")] = "F",
    offset: Annotated[int, typer.Option(help="Distance between query and key, for M under rotary positions.")] = 0,
    top: Annotated[int, typer.Option(min=1, max=10_000, help="Number of pairs that are listed.")] = 12,
    draws: Annotated[int, typer.Option(min=0, max=10_000, help="Random rotations of the null. 0 omits it.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the rotations.")] = 0,
    *,
    model: ModelOptions,
    output: OutputOptions,
) -> None:
    """List which features a head turns into which (F), or which features of query and key it matches (M).

    Examples:  rheoscope features map --head 5.1    ·    rheoscope features map sae/ --model gpt2 --head 7.3 --operator M --offset 1
    """
    from rheoscope.learn.feature_report import run_map

    settings = {"operator": operator, "offset": offset, "top": top, "draws": draws, "seed": seed}
    run_map(model.open, dictionary, head, settings, output.files(), output.explain)
