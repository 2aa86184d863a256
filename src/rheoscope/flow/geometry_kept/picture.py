"""The plot of `geometry_kept`: preservation of distances and neighbours with their nulls."""

from typing import TYPE_CHECKING, Any

from rheoscope.messages.message import Message, plural
from rheoscope.picture.picture import SERIES_COLOURS, Axis, Line, Panel, Picture
from rheoscope.picture.token_labels import step_names

if TYPE_CHECKING:
    import xarray

CAPTION = Message(
    "1 means that the tokens keep the distances or the neighbours of the reference, which is the embedding or an earlier layer. The "
    "null permutes the tokens of the reference. For neighbours it is k/(n − 1)."
)


def picture(dataset: "xarray.Dataset") -> Picture:
    """Both measures over depth, one line per reference."""
    names = tuple(step_names(dataset.point.values))
    nulls = {
        "rsa": dataset.rsa_null.sel(reference="embed").values,
        "neighbours": [float(dataset.neighbours_null)] * len(names),
    }
    titles = {
        "rsa": Message("Distances preserved (RSA)"),
        "neighbours": Message("Neighbours preserved ({k} nearest)", k=int(dataset.attrs["n_neighbours"])),
    }
    panels = tuple(reference_panel(dataset, name, title, nulls[name], names) for name, title in titles.items())
    return Picture(Message("How much of the geometry is preserved"), CAPTION, panels)


def reference_panel(dataset: "xarray.Dataset", name: str, title: str, null: Any, names: tuple[str, ...]) -> Panel:
    x = range(len(names))
    lines = [Line(Message("null"), x, null, "null", "dashed")]
    for colour, reference in zip(SERIES_COLOURS, dataset.reference.values, strict=False):
        lines.append(Line(reference_label(str(reference)), x, dataset[name].sel(reference=reference).values, colour))
    description = Message(
        "{definition}. Null: {null}.",
        definition=dataset[name].attrs["definition"],
        null=dataset[f"{name}_null"].attrs["definition"],
    )
    return Panel(title, description, tuple(lines), Axis("", names), Axis(high=1.03))


def reference_label(reference: str) -> Message:
    """The label of a reference.

    >>> reference_label("embed"), reference_label("-1"), reference_label("-4")
    ('embedding', '1 layer before', '4 layers before')
    """
    if reference == "embed":
        return Message("embedding")
    return plural("{n} layer before", "{n} layers before", n=-int(reference))
