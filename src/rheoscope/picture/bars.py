"""Named numbers as bars, the first on top: the panel that lists of the strongest share."""

from collections.abc import Sequence

from rheoscope.picture.picture import Axis, Panel, Shape, number


def bars(
    title: str,
    about: str,
    table: Sequence[tuple[str, float]],
    label: str,
    colours: tuple[str, str] = ("first", "second"),
) -> Panel:
    """A bar a row, from 0 to its number; what is below 0 has the second colour.

    >>> [mark.tip for mark in bars("", "", [("a", 2.0), ("b", -1.0)], "").marks]
    ['b: -1', 'a: 2']
    """
    marks = []
    for place, (name, value) in enumerate(reversed(table)):
        x, y = [0.0, value, value, 0.0], [place - 0.36, place - 0.36, place + 0.36, place + 0.36]
        marks.append(Shape("", x, y, colours[value < 0], 0.85, f"{name}: {number(value)}"))
    names = tuple(name for name, _ in reversed(table))
    return Panel(
        title, about, tuple(marks), Axis(label), Axis("", names), height=max(0.6, (len(table) * 19 + 56) / 236)
    )
