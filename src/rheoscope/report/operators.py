"""The operators of a model as a terminal table, a page and JSON."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rheoscope.covers.operators import DEFINITIONS, operators
from rheoscope.covers.scores import DEFINITIONS as SCORE_DEFINITIONS
from rheoscope.covers.scores import scores
from rheoscope.report.answers import types_of
from rheoscope.report.dataset import save_json
from rheoscope.report.page import Cell, Page, png, save
from rheoscope.report.picture import Picture
from rheoscope.report.plot.scores import picture_scores
from rheoscope.report.progress import progress

if TYPE_CHECKING:
    import xarray
    from rich.table import Table

    from rheoscope.space.model import Model

COLUMNS = {
    "symmetry": "symmetry",
    "positive_share": "positive",
    "directionality": "direction",
    "stable_rank_M": "rank M",
    "stable_rank_F": "rank F",
    "copying": "copying",
    "alignment": "alignment",
}

SCORE_COLUMNS = {
    "centred": "form",
    "mean_query": "mean q",
    "mean_key": "mean k",
    "query_bias": "bias q",
    "key_bias": "bias k",
    "spread": "nats",
    "positive_share_cloud": "positive",
}


def layer_rows(dataset: "xarray.Dataset") -> list[list[str]]:
    """A row a layer: the median over its heads, and the lowest and highest head, of every number."""
    rows = []
    for layer in range(dataset.sizes["layer"]):
        row = [f"L{layer}"]
        for name in COLUMNS:
            values = dataset[name].values[layer]
            row.append(
                f"{_short(float(sorted(values)[len(values) // 2]))} ({_short(float(values.min()))}…{_short(float(values.max()))})"
            )
        rows.append(row)
    return rows


def _short(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 2 else f"{value:.2f}".replace("0.", ".", 1).replace("-.00", ".00")


def terminal_table(dataset: "xarray.Dataset", columns: dict[str, str] = COLUMNS) -> "Table":
    """A row a layer, the median over its heads: narrow enough for any terminal."""
    from rich.table import Table

    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("layer", *columns.values()):
        table.add_column(column, justify="left" if column == "layer" else "right", no_wrap=True)
    medians = dataset[list(columns)].median("head")
    for layer in range(dataset.sizes["layer"]):
        table.add_row(f"L{layer}", *(_short(float(medians[name][layer])) for name in columns))
    return table


def extremes(dataset: "xarray.Dataset") -> str:
    """The heads at both ends of every number that has a sign."""
    lines = []
    for name in ("symmetry", "positive_share", "directionality", "copying", "alignment"):
        values = dataset[name].values
        ends = [divmod(int(at), values.shape[1]) for at in (values.argmin(), values.argmax())]
        low, high = (f"L{layer}.H{head} {_short(float(values[layer, head]))}" for layer, head in ends)
        lines.append(f"[bold]{COLUMNS[name]}[/] from {low} to {high}")
    return "\n".join(lines)


def page(
    dataset: "xarray.Dataset",
    picture: Picture,
    on_text: "xarray.Dataset | None" = None,
    types: "xarray.Dataset | None" = None,
) -> Page:
    """The maps, then the table, with a definition behind every column; on a text, what scores are made of there."""
    model = dataset.attrs["model"]
    lead = (
        "Each head is two operators on the space where tokens live: the QK circuit (M) says who is relevant to whom, the OV "
        f"circuit (F) says what is carried over. Recomputation is {dataset.attrs['certificate']}."
    )
    header: list[str | Cell] = ["layer", *(Cell(title, DEFINITIONS[name]) for name, title in COLUMNS.items())]
    page = Page(f"Operators of {model}", lead).drawing(replace(picture, title="Every head"))
    page = page.table("Layer by layer: median (lowest…highest head)", header, layer_rows(dataset))
    return page if on_text is None else page.drawing(picture_scores(on_text, types))


def show(model: "Model", text: str | None, raw: bool, explain: bool, json_file: Path | None, html: Path | None) -> None:
    """What `rheoscope operators` does: certificate, table, what scores are made of on a text, and the files asked for."""
    from rich.console import Console

    from rheoscope.report.plot.operators import picture_operators, plot_operators

    view, console = model.view, Console(highlight=False)
    console.print(
        f"[dim]{view.facts['model']} · {view.layers} layers, {view.heads} heads, width {view.width} · {view.facts['certificate']}[/]"
    )
    with progress("operators") as tell:
        dataset = operators(view, raw, tell)
    console.print(terminal_table(dataset))
    console.print("[dim]median over the heads of a layer; --explain defines every column[/]\n")
    console.print(extremes(dataset))
    on_text = None if text is None else scores(model.trace(text))
    if on_text is not None:
        console.print(f"\nWhat scores are made of on {text!r} (shares of what softmax sees)", markup=False)
        console.print(terminal_table(on_text, SCORE_COLUMNS))
        console.print(f"[dim]massive tokens left out: {on_text.attrs['massive'] or 'none'}[/]")
    if explain:
        console.print("\n".join(f"[bold]{title}[/]: {DEFINITIONS[name]}" for name, title in COLUMNS.items()))
    if explain and on_text is not None:
        console.print(
            "\n".join(f"[bold]{title}[/]: {SCORE_DEFINITIONS[name]}" for name, title in SCORE_COLUMNS.items())
        )
    said = []
    if html is not None:
        types = types_of(model)
        drawn, picture = picture_operators(dataset, types), png(plot_operators(dataset, types))
        said += [page(dataset, drawn, on_text, types).save(html), save(picture, html.with_suffix(".png"))]
    if json_file is not None:
        said.append(save_json({"operators": dataset} | ({} if on_text is None else {"scores": on_text}), json_file))
    if said:
        console.print("\n".join(said), soft_wrap=True)
