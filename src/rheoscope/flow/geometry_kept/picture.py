"""What stays of the geometry: distances and neighbours against earlier clouds, beside their nulls."""

from typing import TYPE_CHECKING, Any

from rheoscope.picture.picture import CLUSTERS, Axis, Line, Panel, Picture
from rheoscope.picture.token_labels import places

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "1 where the tokens keep the distances, or the neighbours, that they had at the reference: the embedding, or so many "
    "layers before. The null permutes the tokens of the reference (for neighbours it is known: k/(n − 1))."
)


def picture(dataset: "xarray.Dataset") -> Picture:
    """Both measures over depth, a line a reference."""
    names = tuple(places(dataset.point.values))
    nulls = {
        "rsa": dataset.rsa_null.sel(reference="embed").values,
        "neighbours": [float(dataset.neighbours_null)] * len(names),
    }
    titles = {"rsa": "Distances kept (RSA)", "neighbours": f"Neighbours kept ({dataset.attrs['nearest']} nearest)"}
    panels = tuple(against(dataset, name, title, nulls[name], names) for name, title in titles.items())
    return Picture("What stays of the geometry", CAPTION, panels)


def against(dataset: "xarray.Dataset", name: str, title: str, null: Any, names: tuple[str, ...]) -> Panel:
    at = range(len(names))
    lines = [Line("null", at, null, "null", "dashed")]
    for colour, reference in zip(CLUSTERS, dataset.reference.values, strict=False):
        lines.append(Line(in_words(str(reference)), at, dataset[name].sel(reference=reference).values, colour))
    about = f"{dataset[name].attrs['definition']}. Null: {dataset[f'{name}_null'].attrs['definition']}."
    return Panel(title, about, tuple(lines), Axis("", names), Axis(high=1.03))


def in_words(reference: str) -> str:
    """A reference in words.

    >>> in_words("embed"), in_words("-1"), in_words("-4")
    ('to the embedding', 'to 1 layer before', 'to 4 layers before')
    """
    if reference == "embed":
        return "to the embedding"
    back = int(reference.removeprefix("-"))
    return f"to {back} layer{'s' * (back > 1)} before"
