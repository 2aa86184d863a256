"""What stays of the geometry: distances and neighbours against earlier clouds, beside their nulls."""

from typing import TYPE_CHECKING, Any

from rheoscope.picture.picture import SERIES_COLOURS, Axis, Line, Panel, Picture
from rheoscope.picture.token_labels import step_names

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "1 where the tokens keep the distances, or the neighbours, that they had at the reference: the embedding, or so many "
    "layers before. The null permutes the tokens of the reference (for neighbours it is known: k/(n − 1))."
)


def picture(dataset: "xarray.Dataset") -> Picture:
    """Both measures over depth, a line a reference."""
    names = tuple(step_names(dataset.point.values))
    nulls = {
        "rsa": dataset.rsa_null.sel(reference="embed").values,
        "neighbours": [float(dataset.neighbours_null)] * len(names),
    }
    titles = {"rsa": "Distances kept (RSA)", "neighbours": f"Neighbours kept ({dataset.attrs['nearest']} nearest)"}
    panels = tuple(reference_panel(dataset, name, title, nulls[name], names) for name, title in titles.items())
    return Picture("What stays of the geometry", CAPTION, panels)


def reference_panel(dataset: "xarray.Dataset", name: str, title: str, null: Any, names: tuple[str, ...]) -> Panel:
    x = range(len(names))
    lines = [Line("null", x, null, "null", "dashed")]
    for colour, reference in zip(SERIES_COLOURS, dataset.reference.values, strict=False):
        lines.append(Line(reference_label(str(reference)), x, dataset[name].sel(reference=reference).values, colour))
    description = f"{dataset[name].attrs['definition']}. Null: {dataset[f'{name}_null'].attrs['definition']}."
    return Panel(title, description, tuple(lines), Axis("", names), Axis(high=1.03))


def reference_label(reference: str) -> str:
    """A reference in words.

    >>> reference_label("embed"), reference_label("-1"), reference_label("-4")
    ('to the embedding', 'to 1 layer before', 'to 4 layers before')
    """
    if reference == "embed":
        return "to the embedding"
    n_layers = int(reference.removeprefix("-"))
    return f"to {n_layers} layer{'s' * (n_layers > 1)} before"
