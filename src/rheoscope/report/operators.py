"""The operators of a model as a terminal table, a page and JSON."""

from pathlib import Path
from typing import TYPE_CHECKING

from rheoscope.covers.operators import DEFINITIONS, operators
from rheoscope.report.dataset import save_json
from rheoscope.report.page import Cell, Page, png, save

if TYPE_CHECKING:
    import xarray
    from rich.table import Table

    from rheoscope.space.view import View

COLUMNS = {
    "symmetry": "symmetry",
    "positive_share": "positive",
    "directionality": "direction",
    "stable_rank_M": "rank M",
    "stable_rank_F": "rank F",
    "copying": "copying",
    "alignment": "alignment",
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


def terminal_table(dataset: "xarray.Dataset") -> "Table":
    """A row a layer, the median over its heads: narrow enough for any terminal."""
    from rich.table import Table

    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("layer", *COLUMNS.values()):
        table.add_column(column, justify="left" if column == "layer" else "right", no_wrap=True)
    medians = dataset[list(COLUMNS)].median("head")
    for layer in range(dataset.sizes["layer"]):
        table.add_row(f"L{layer}", *(_short(float(medians[name][layer])) for name in COLUMNS))
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


def page(dataset: "xarray.Dataset", picture: bytes) -> Page:
    """The maps, then the table, with a definition behind every column."""
    model = dataset.attrs["model"]
    lead = (
        "Each head is two operators on the space where tokens live: the QK circuit (M) says who is relevant to whom, the OV "
        f"circuit (F) says what is carried over. {dataset.attrs['certificate']}."
    )
    header: list[str | Cell] = ["layer", *(Cell(title, DEFINITIONS[name]) for name, title in COLUMNS.items())]
    caption = "One square a head. Symmetry and copying compare with 0, the positive share with one half, at random."
    return (
        Page(f"Operators of {model}", lead)
        .picture("Every head", picture, caption)
        .table("Layer by layer: median (lowest…highest head)", header, layer_rows(dataset))
    )


def show(view: "View", raw: bool, explain: bool, json_file: Path | None, html: Path | None) -> None:
    """What `rheoscope operators` does: certificate, table, and the files asked for."""
    from rich.console import Console
    from rich.progress import Progress

    from rheoscope.report.plot.operators import plot_operators

    console = Console(highlight=False)
    console.print(
        f"[dim]{view.facts['model']} · {view.layers} layers, {view.heads} heads, width {view.width} · {view.facts['certificate']}[/]"
    )
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("operators", total=view.layers)
        dataset = operators(view, raw, lambda done, total: progress.update(bar, completed=done))
    console.print(terminal_table(dataset))
    console.print("[dim]median over the heads of a layer; --explain defines every column[/]\n")
    console.print(extremes(dataset))
    if explain:
        console.print("\n".join(f"[bold]{title}[/]: {DEFINITIONS[name]}" for name, title in COLUMNS.items()))
    said = []
    if html is not None:
        picture = png(plot_operators(dataset))
        said += [page(dataset, picture).save(html), save(picture, html.with_suffix(".png"))]
    if json_file is not None:
        said.append(save_json({"operators": dataset}, json_file))
    if said:
        console.print("\n".join(said), soft_wrap=True)
