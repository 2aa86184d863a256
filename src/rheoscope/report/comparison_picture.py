"""Two texts layer by layer: every number of the table as curves, one text beside the other."""

from rheoscope.picture.picture import Axis, Line, Panel, Picture
from rheoscope.report.layer_table import shared_columns
from rheoscope.space.results import Results

CAPTION = (
    "Every number of the table over depth, a colour a text; dashed in its colour where it has a null. Texts of different length differ in "
    "numbers that count tokens: compare those with their nulls."
)
TEXT_COLOURS = {"text 1": "first", "text 2": "second"}


def picture(first_results: Results, second_results: Results) -> Picture:
    """A panel for every number that both texts have."""
    layers = tuple(f"L{layer}" for layer in range(first_results.view.layers))
    panels = []
    for column in shared_columns(first_results, second_results):
        lines = []
        for (name, colour), results in zip(TEXT_COLOURS.items(), (first_results, second_results), strict=True):
            dataset, x = results.datasets[column.analysis], range(len(layers))
            if column.null is not None:
                null = [column.null(dataset, layer) for layer in x]
                lines.append(Line(f"{name}, null", x, null, colour, "dashed"))
            lines.append(Line(name, x, [column.value(dataset, layer) for layer in x], colour))
        panels.append(Panel(column.title, column.definition, tuple(lines), Axis("", layers)))
    return Picture("Layer by layer, both texts", CAPTION, tuple(panels))
