"""Pictures of stored models: curves over relative depth, and all heads of all models."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.catalogue import analysis_by_name, analysis_names
from rheoscope.messages.message import Message, Verbatim
from rheoscope.picture.picture import SERIES_COLOURS, Axis, Line, Panel, Picture
from rheoscope.report.atlas_entry import CLOUD, AtlasEntry
from rheoscope.report.atlas_tables import cloud_curves, cloud_name
from rheoscope.space.analysis import Field

if TYPE_CHECKING:
    import pandas

STYLES, MARKS = ("solid", "dashed"), ("dots", "stars")
"""More models than colours have other styles."""


def declared_field(name: str) -> Field:
    """The declaration of a field by its name in the atlas, analysis.field."""
    analysis, _, field = name.partition(".")
    return analysis_by_name(analysis).fields[field]


def curves_picture(entries: Sequence[AtlasEntry]) -> Picture:
    """One panel per field with a line per cloud, over relative depth. Each cloud is in the legend of its first panel."""
    clouds = {name: curves for entry in entries for name, curves in cloud_curves(entry).items()}
    fields = dict.fromkeys(field for entry in entries for field in entry.curves.field[entry.curves.depth.notna()])
    panels: list[Panel] = []
    named: set[str] = set()
    for field in fields:
        lines = [
            _curve_line(index, name, curves.curve(field), has_legend=name not in named)
            for index, (name, curves) in enumerate(clouds.items())
            if len(curves.curve(field))
        ]
        named |= {line.name for line in lines}
        definition = declared_field(field).definition
        panels.append(
            Panel(
                Verbatim(field), definition, tuple(lines), Axis(Message("relative depth"), low=0.0, high=1.0), Axis("")
            )
        )
    caption = Message("Means over texts. Depth 0 is the embedding and 1 the end of the last layer.")
    return Picture(Message("Curves over the layers"), caption, tuple(panel for panel in panels if panel.marks))


def _curve_line(index: int, name: str, curve: "pandas.DataFrame", has_legend: bool) -> Line:
    colour = SERIES_COLOURS[index % len(SERIES_COLOURS)]
    style = STYLES[index // len(SERIES_COLOURS) % len(STYLES)]
    tip = "" if has_legend else Verbatim(name)
    return Line(Verbatim(name), curve.depth.to_numpy(), curve["mean"].to_numpy(), colour, style, tip)


def heads_picture(entries: Sequence[AtlasEntry]) -> Picture:
    """All heads of all models, along the fields that declare an axis of the atlas."""
    names = [f"{name}.{axis}" for name in analysis_names() if (axis := analysis_by_name(name).atlas_axis)]
    lines, index = [], 0
    for entry in entries:
        for side in entry.clouds[CLOUD]:
            heads = entry.heads[entry.heads[CLOUD] == side]
            if all(name in heads and np.isfinite(heads[name]).any() for name in names):
                colour, style = (
                    SERIES_COLOURS[index % len(SERIES_COLOURS)],
                    MARKS[index // len(SERIES_COLOURS) % len(MARKS)],
                )
                x, y = (heads[name].to_numpy() for name in names)
                lines.append(Line(Verbatim(cloud_name(entry.model, side)), x, y, colour, style))
            index += 1
    x_name, y_name = names
    axes = Axis(Verbatim(x_name)), Axis(Verbatim(y_name))
    about = Message("{x}; {y}", x=declared_field(x_name).definition, y=declared_field(y_name).definition)
    panel = Panel(Message("All heads"), about, tuple(lines), *axes, columns=3, height=1.6)
    return Picture(Message("The heads of all models"), Message("Each mark is a head."), (panel,))
