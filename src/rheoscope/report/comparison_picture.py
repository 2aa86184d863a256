"""Two texts layer by layer: every column of the table of layers as curves."""

from rheoscope.messages.message import Message
from rheoscope.picture.picture import Axis, Line, Panel, Picture
from rheoscope.report.layer_table import shared_columns
from rheoscope.space.results import Results

CAPTION = Message(
    "Every column of the table over depth, with one colour per text. Dashed: the null. Numbers that count tokens depend on the "
    "length of the text, so compare them with their nulls."
)
TEXT_COLOURS = {1: "first", 2: "second"}


def picture(first_results: Results, second_results: Results) -> Picture:
    """One panel for every column that both texts have."""
    layers = tuple(f"L{layer}" for layer in range(first_results.view.layers))
    panels = []
    for column in shared_columns(first_results, second_results):
        lines = []
        for (number, colour), results in zip(TEXT_COLOURS.items(), (first_results, second_results), strict=True):
            dataset, x = results.datasets[column.analysis], range(len(layers))
            if column.null is not None:
                null = [column.null(dataset, layer) for layer in x]
                lines.append(Line(Message("text {number}, null", number=number), x, null, colour, "dashed"))
            values = [column.value(dataset, layer) for layer in x]
            lines.append(Line(Message("text {number}", number=number), x, values, colour))
        panels.append(Panel(column.title, column.definition, tuple(lines), Axis("", layers)))
    return Picture(Message("Layer by layer, both texts"), CAPTION, tuple(panels))
