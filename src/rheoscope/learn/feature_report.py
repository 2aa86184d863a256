"""The output of `rheoscope features`: train a dictionary, measure it on texts, and list what a head does with it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rheoscope.covers.feature_map import FEATURE_MAP, feature_map
from rheoscope.covers.feature_quality import FEATURE_QUALITY, feature_quality
from rheoscope.learn.feature_training import FeatureRecipe, train_features
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.models.text_files import read_fragments
from rheoscope.picture.blocks import Cell, Table
from rheoscope.report.card_texts import for_model, passages, read_texts
from rheoscope.report.console import console
from rheoscope.report.page import Page
from rheoscope.report.parse_options import parse_heads, read_features
from rheoscope.report.progress_bars import progress
from rheoscope.report.run_report import OutputFiles, write_files
from rheoscope.report.terminal import Terminal
from rheoscope.running.features import Features
from rheoscope.running.progress import listen
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    import xarray

OpenModel = Callable[[], RunnableModel]
"""Opens the model of the command, after its other options are checked."""

QUALITY_ROWS = {
    "explained_variance": Message("explained variance"),
    "active": Message("active features per token"),
    "loss": Message("loss of the model, nats"),
    "loss_spliced": Message("loss with the reconstruction, nats"),
    "loss_ablated": Message("loss with the mean, nats"),
    "loss_recovered": Message("share of the loss recovered"),
}
PASSAGES = Message("the passages of the package")


def run_training(open_model: OpenModel, data: Sequence[Path], out: Path, site: str, recipe: FeatureRecipe) -> None:
    """Train a dictionary, save it and print its quality on the passages of the package."""
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise RheoscopeError(Message("{path} exists; choose another directory", path=str(out)), Advice("", "--out DIR"))
    model = open_model()
    with progress(Message("training features")) as on_progress, listen(on_progress):
        features = train_features(model, documents(data), site, recipe)
    features.save(out)
    Terminal(console(), []).print_files([Message("written: {path}", path=str(out))])
    if model.view.predicts_next_token:
        print_quality(model, Features.load(out), passages(), PASSAGES, OutputFiles())


def documents(files: Sequence[Path]) -> Iterator[str]:
    """The documents of text files, plain, gzipped or MediaWiki dumps."""
    for file in files:
        fragments = list[str]()
        for fragment in read_fragments(file):
            if fragment is not None:
                fragments.append(fragment)
            elif fragments:
                yield "".join(fragments)
                fragments = []


def run_measurement(
    open_model: OpenModel, name: str, texts_path: Path | None, files: OutputFiles, explain: bool
) -> None:
    """Measure a dictionary on texts."""
    features, model = read_features(name), open_model()
    texts: Sequence[Any] = passages() if texts_path is None else for_model(model, read_texts(texts_path))
    print_quality(model, features, texts, PASSAGES if texts_path is None else str(texts_path), files, explain)


def print_quality(
    model: RunnableModel,
    features: Features,
    texts: Sequence[Any],
    source: str,
    files: OutputFiles,
    explain: bool = False,
) -> None:
    """Print the quality of a dictionary on texts, and write its files."""
    with progress(Message("measuring features")) as on_progress, listen(on_progress):
        result = feature_quality(model, texts, features)
    print_result(result, quality_table(result, features, source), files, explain)


def print_result(result: "xarray.Dataset", table: Table, files: OutputFiles, explain: bool) -> None:
    """Print the table of a result and write its files."""
    terminal = Terminal(console(), [], explain)
    terminal.print_block(table)
    name, question = str(result.attrs["analysis"]), str(result.attrs["question"])
    page = Page(question, table.heading).with_table(table.heading, table.header, table.rows, table.text_columns)
    terminal.print_files(write_files({name: result}, page.save if files.wants_page else None, files))


def quality_table(result: "xarray.Dataset", features: Features, source: str) -> Table:
    """One row per measure, with its interval over texts."""
    header = [Cell(Message("measure")), Cell(Message("value")), Cell(Message("95 % interval"))]
    rows = [
        [
            Cell(label, FEATURE_QUALITY.fields[name].definition),
            Cell(f"{float(result[name]):.3f}"),
            Cell(f"{float(result[f'{name}_low']):.3f} – {float(result[f'{name}_high']):.3f}"),
        ]
        for name, label in QUALITY_ROWS.items()
    ]
    inactive = Message("features that are never active")
    rows.append([Cell(inactive), Cell(f"{100 * float(result.inactive_share):.1f} %"), Cell("")])
    title = Message(
        "{features} on {n} texts: {source}", features=features.summary, n=result.attrs["texts"], source=source
    )
    return Table(title, header, rows, frozenset({0}))


def run_map(
    open_model: OpenModel, name: str, head: str, settings: dict[str, Any], files: OutputFiles, explain: bool
) -> None:
    """List the strongest pairs of features of a head."""
    features, model = read_features(name), open_model()
    heads = parse_heads(head, model.view)
    if heads is None or len(heads) != 1:
        raise RheoscopeError(
            Message("expected one head as layer.head, got {received!r}", received=head), Advice("", "--head 5.1")
        )
    FEATURE_MAP.check_settings(settings)
    with progress(Message("mapping features")) as on_progress, listen(on_progress):
        result = feature_map(model.view.head(*heads[0]), features, **settings)
    print_result(result, map_table(result), files, explain)


def map_table(result: "xarray.Dataset") -> Table:
    """One row per pair of features, the strongest first."""
    is_value_map = result.attrs["operator"] == "F"
    names = (Message("reads"), Message("writes")) if is_value_map else (Message("query"), Message("key"))
    header = [
        *map(Cell, names),
        Cell(Message("value"), FEATURE_MAP.fields["value"].definition),
        Cell(Message("random")),
    ]
    rows = [
        [
            Cell(f"f{int(result.feature_from[place])}"),
            Cell(f"f{int(result.feature_to[place])}"),
            Cell(f"{float(result.value[place]):+.3f}"),
            Cell(f"{float(result.value_null[place]):.3f} ± {float(result.value_null_sd[place]):.3f}"),
        ]
        for place in range(result.sizes["place"])
    ]
    head = f"L{result.attrs['layer']}.H{result.attrs['head']}"
    title = (
        Message("{head}: what F makes of features", head=head)
        if is_value_map
        else Message("{head}: features that M matches", head=head)
    )
    note = Message(
        "random: the mean and the standard deviation of |value| at this place, if all directions are rotated at random"
    )
    return Table(title, header, rows, frozenset({0, 1}), note=note)
