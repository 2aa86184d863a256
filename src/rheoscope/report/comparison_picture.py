"""Two texts layer by layer: every number of the table as curves, one text beside the other."""

from rheoscope.picture.picture import Axis, Line, Panel, Picture
from rheoscope.report.layer_table import columns
from rheoscope.space.results import Answers

CAPTION = (
    "Every number of the table over depth, a colour a text; dashed in its colour where it has a null. Texts of different length differ in "
    "numbers that count tokens: compare those with their nulls."
)
COLOURS = {"text 1": "first", "text 2": "second"}


def picture(first: Answers, second: Answers) -> Picture:
    """A panel for every number that both texts have."""
    both = [column for column in columns(first.found) if column.analysis in second.found]
    layers = tuple(f"L{layer}" for layer in range(first.view.layers))
    panels = []
    for column in both:
        lines = []
        for (name, colour), told in zip(COLOURS.items(), (first, second), strict=True):
            dataset, at = told.found[column.analysis], range(len(layers))
            if column.null is not None:
                null = [column.null(dataset, layer) for layer in at]
                lines.append(Line(f"{name}, null", at, null, colour, "dashed"))
            lines.append(Line(name, at, [column.value(dataset, layer) for layer in at], colour))
        panels.append(Panel(column.title, column.definition, tuple(lines), Axis("", layers)))
    return Picture("Layer by layer, both texts", CAPTION, tuple(panels))
