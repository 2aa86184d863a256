"""Horizontal bar charts of named numbers."""

from collections.abc import Sequence

from rheoscope.messages.message import join
from rheoscope.picture.picture import Axis, Panel, Shape, format_value


def bar_panel(
    title: str,
    description: str,
    entries: Sequence[tuple[str, float]],
    label: str,
    colours: tuple[str, str] = ("first", "second"),
) -> Panel:
    """One horizontal bar per entry, with the first entry on top. Negative bars have the second colour.

    >>> [mark.tip for mark in bar_panel("", "", [("a", 2.0), ("b", -1.0)], "").marks]
    ['b: -1', 'a: 2']
    """
    marks = []
    for row, (name, value) in enumerate(reversed(entries)):
        x, y = [0.0, value, value, 0.0], [row - 0.36, row - 0.36, row + 0.36, row + 0.36]
        marks.append(Shape("", x, y, colours[value < 0], 0.85, join(": ", [name, format_value(value)])))
    names = tuple(name for name, _ in reversed(entries))
    return Panel(
        title, description, tuple(marks), Axis(label), Axis("", names), height=max(0.6, (len(entries) * 19 + 56) / 236)
    )
