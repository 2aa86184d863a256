"""Pictures for pages: SVG written by hand, a few kilobytes a panel, in the page's own colours, with words under the pointer.

A chart library would weigh more than everything a report says (plotly.js: 4.6 MB); this needs no script to be read.
"""

import math
from html import escape

from rheoscope.picture.picture import (
    NONE,
    Axis,
    Cells,
    Line,
    Panel,
    Picture,
    Shape,
    Word,
    colour_of,
    decades,
    in_words,
    number,
    thinned,
    ticks,
)

COLUMN, ROW, GAP = 360, 236, 28
TOP, RIGHT, BOTTOM = 10, 12, 36
LETTER = 6.2
"""Mean width of a letter of 11 units."""
LONGEST = 20
"""Letters of a name on the left; the rest is cut."""


class Frame:
    """Where the numbers of a panel are on its sheet."""

    def __init__(self, panel: Panel) -> None:
        self.width = COLUMN * panel.columns + GAP * (panel.columns - 1)
        self.height = round(ROW * panel.height)
        self.left = _margin(panel)
        self.panel, self.cells = panel, panel.cells
        self.xs, self.ys = _scaled(panel, "x"), _scaled(panel, "y")
        if panel.equal:
            self.xs, self.ys = _equal(self.xs, self.ys, self.width - self.left - RIGHT, self.height - TOP - BOTTOM)

    def x(self, value: float) -> float:
        return self.left + self.share(value, self.xs, self.panel.x) * (self.width - self.left - RIGHT)

    def y(self, value: float) -> float:
        share = self.share(value, self.ys, self.panel.y)
        return TOP + (share if self.cells else 1 - share) * (self.height - TOP - BOTTOM)

    @staticmethod
    def share(value: float, span: tuple[float, float], axis: Axis) -> float:
        low, high = span
        value = math.log10(value) if axis.log else value
        return (value - low) / (high - low) if high > low else 0.5


def figures(picture: Picture) -> str:
    """Every panel of a picture as an HTML figure, with its key and how to read it; maps share one key."""
    head = f'<p class="caption">{escape(picture.caption)}</p>{key(picture.key) if picture.key else ""}'
    return f'{head}<div class="panels">{"".join(map(figure, picture.panels))}</div>'


def figure(panel: Panel) -> str:
    head = f'<h3><span title="{escape(panel.about, quote=True)}">{escape(panel.title)}</span></h3>'
    worded = panel.columns == 3 or any(
        isinstance(mark, Word) or (isinstance(mark, Cells) and mark.texts) for mark in panel.marks
    )
    least = f' style="min-width:{round(0.75 * Frame(panel).width)}px"' if worded and panel.columns > 1 else ""
    sheet = svg(panel).replace("<svg", f"<svg{least}", 1)
    kind = f"of{panel.columns}{' tall' * (panel.height > 1.5 and panel.columns == 2)}"
    own = "".join(map(scale, panel.maps)) if panel.cells else key(panel.key) if len(panel.key) > 1 else ""
    return f'<figure class="{kind}">{head}{own}<div class="scroll">{sheet}</div></figure>'


def scale(mark: Cells) -> str:
    """Which colour is how much: a bar with both its ends and a number between them, and what they measure.

    >>> import numpy as np
    >>> scale(Cells(np.array([[0.5]]), name="share")).count("<b")
    3
    """
    at = [f"{100 * place:.0f}%" for place in mark.places]
    colours = ", ".join(f"{shaded(side, abs(shade))} {100 * place:.0f}%" for shade, side, place in mark.colours)
    said = "".join(
        f'<b style="left:{left}">{escape(words)}</b>' for left, (_, words) in zip(at, mark.scale, strict=True)
    )
    bar = f'<i style="background:linear-gradient(to right, {colours})">{said}</i>'
    return f'<div class="scale">{bar}<span>{escape(mark.name)}</span></div>'


def shaded(side: str, shade: float) -> str:
    """A colour of the palette as faint as a cell of this shade, in CSS; what is behind it is seen through it."""
    return f"{colour_of(side)}{round(255 * shade):02x}"


def key(looks: dict[str, tuple[str, str]]) -> str:
    """Which colour is what, as a list."""
    items = (
        f'<li><i class="{style}" style="--c:{colour_of(colour)}"></i>{escape(name)}</li>'
        for name, (colour, style) in looks.items()
    )
    return f'<ul class="key">{"".join(items)}</ul>'


def svg(panel: Panel) -> str:
    """One panel as an SVG element, scalable, its text selectable.

    >>> one = Panel("Speed", "how fast", (Line("speed", [0, 1], [1.0, 2.0]),))
    >>> svg(one).count("<polyline"), svg(one).count('class="hit"')
    (1, 2)
    """
    frame = Frame(panel)
    label = escape(f"{panel.title}. {panel.about}", quote=True)
    inside = axes(frame) + "".join(marks(frame)) + hits(frame)
    return f'<svg viewBox="0 0 {frame.width} {frame.height}" role="img" aria-label="{label}">{inside}</svg>'


def marks(frame: Frame) -> list[str]:
    hands = {Line: line, Shape: shape, Cells: cells, Word: word}
    return [hands[type(mark)](frame, mark) for mark in frame.panel.marks]  # type: ignore[operator]


def line(frame: Frame, mark: Line) -> str:
    """A line is broken where a value is missing."""
    if mark.style in SPOTS:
        return spots(frame, mark)
    tip = f"<title>{escape(mark.tip)}</title>" if mark.tip else ""
    plain = "path" if mark.tip else "line"
    kind = {"solid": plain, "dashed": f"{plain} null", "hair": "hair"}[mark.style]
    return "".join(
        f'<polyline class="{kind}" stroke="{colour_of(mark.colour)}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in piece)}">'
        f"{tip}</polyline>"
        for piece in _pieces(frame, mark)
    )


def spots(frame: Frame, mark: Line) -> str:
    """Dots, rings or stars, each with its own words under the pointer or with those of all."""
    r, colour, drawn = dot(frame), colour_of(mark.colour), []
    for at, (x, y) in enumerate(zip(mark.x, mark.y, strict=True)):
        if _there(frame, float(y)):
            said = mark.tips[at] if len(mark.tips) else mark.tip
            tip = f"<title>{escape(said)}</title>" if said else ""
            drawn.append(SPOTS[mark.style](*_at(frame, float(x), float(y)), r, colour, tip, frame.cells))
    return "".join(drawn)


def round_spot(x: float, y: float, r: float, colour: str, tip: str, on: bool) -> str:
    return f'<circle{" class=on" * on} cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}" fill="{colour}">{tip}</circle>'


def ring(x: float, y: float, r: float, colour: str, tip: str, on: bool) -> str:
    return f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="{2 * r:.1f}" stroke="{colour}">{tip}</circle>'


def star(x: float, y: float, r: float, colour: str, tip: str, on: bool) -> str:
    reach = [(r * (2.4 if k % 2 == 0 else 1.0), math.pi * (k / 5 - 0.5)) for k in range(10)]
    points = " ".join(f"{x + far * math.cos(turn):.1f},{y + far * math.sin(turn):.1f}" for far, turn in reach)
    return f'<polygon class="star" points="{points}" fill="{colour}">{tip}</polygon>'


SPOTS = {"dots": round_spot, "rings": ring, "stars": star}


def dot(frame: Frame) -> float:
    """The radius of a dot: on a map it leaves room for the cell around it."""
    if not frame.cells:
        return 3.2
    return min(4.0, 0.3 * abs(frame.x(1.0) - frame.x(0.0)), 0.36 * abs(frame.y(1.0) - frame.y(0.0)))


def shape(frame: Frame, mark: Shape) -> str:
    points = " ".join(f"{frame.x(float(x)):.1f},{frame.y(float(y)):.1f}" for x, y in zip(mark.x, mark.y, strict=True))
    look = f'class="shape" fill="{colour_of(mark.colour)}" fill-opacity="{mark.opacity:g}"'
    return f'<polygon {look} points="{points}"><title>{escape(mark.tip or mark.name)}</title></polygon>'


def cells(frame: Frame, mark: Cells) -> str:
    shades, (rows, columns) = mark.shades, mark.values.shape
    wide, tall = (
        frame.x(1.0) - frame.x(0.0) if columns > 1 else frame.width,
        frame.y(1.0) - frame.y(0.0) if rows > 1 else ROW,
    )
    drawn = []
    for row in range(rows):
        for column in range(columns):
            x, y = frame.x(float(column)) - wide / 2, frame.y(float(row)) - tall / 2
            drawn.append(cell(mark, row, column, float(shades[row, column]), (x, y, wide, tall)))
    return "".join(drawn)


def cell(mark: Cells, row: int, column: int, shade: float, box: tuple[float, float, float, float]) -> str:
    x, y, wide, tall = box
    colour, opacity = NONE if math.isnan(shade) else ("first" if shade >= 0 else "second", abs(shade))
    tip = mark.tips[row][column] if mark.tips else number(float(mark.values[row, column]))
    ring = ' class="marked"' if (row, column) in mark.marked else ""
    drawn = (
        f'<g class="cell"><rect{ring} x="{x + 0.5:.1f}" y="{y + 0.5:.1f}" width="{wide - 1:.1f}" height="{tall - 1:.1f}" '
        f'fill="{colour_of(colour)}" fill-opacity="{opacity:.2f}"/><title>{escape(tip)}</title>'
    )
    if mark.texts:
        strong = ' class="on"' if abs(shade) > 0.65 else ""
        text = _short(mark.texts[row][column], int(wide / LETTER) - 1)
        drawn += f'<text{strong} x="{x + wide / 2:.1f}" y="{y + tall / 2 + 4:.1f}" text-anchor="middle">{escape(text)}</text>'
    return drawn + "</g>"


def word(frame: Frame, mark: Word) -> str:
    off = 10 if mark.strong else 6
    anchor, across, down = {
        "left": ("end", -off, 4),
        "right": ("start", off, 4),
        "above": ("middle", 0, -off),
        "below": ("middle", 0, off + 8),
        "middle": ("middle", 0, 4),
    }[mark.side]
    x, y = frame.x(float(mark.x)) + across, frame.y(float(mark.y)) + down
    text = _short(mark.text, 18 if mark.side != "middle" else int(frame.width / LETTER) - 2)
    kind = "word strong" if mark.strong else "word"
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def hits(frame: Frame) -> str:
    """A column for every x that says all values there; none where lines, or cells, answer for themselves."""
    series = [mark for mark in frame.panel.marks if isinstance(mark, Line) and mark.name]
    if frame.cells or any(mark.answers for mark in series) or not series:
        return ""
    table: dict[float, list[str]] = {}
    for mark in series:
        for x, y in zip(mark.x, mark.y, strict=True):
            table.setdefault(float(x), []).append(f"{mark.name}: {number(float(y))}")
    places = sorted(table)
    drawn = []
    for at, x in enumerate(places):
        left = frame.left if at == 0 else (frame.x(places[at - 1]) + frame.x(x)) / 2
        right = frame.width - RIGHT if at == len(places) - 1 else (frame.x(x) + frame.x(places[at + 1])) / 2
        names = frame.panel.x.names
        said = "\n".join([names[int(x)] if names else f"{frame.panel.x.label} {number(x)}".strip(), *table[x]])
        drawn.append(
            f'<rect class="hit" x="{left:.1f}" y="{TOP}" width="{right - left:.1f}" height="{frame.height - TOP - BOTTOM}">'
            f"<title>{escape(said)}</title></rect>"
        )
    return "".join(drawn)


def axes(frame: Frame) -> str:
    """Grid lines, tick labels and names of both axes."""
    foot, edge = frame.height - BOTTOM, frame.width - RIGHT
    drawn = []
    for value, text in _labels(frame.panel.y, frame.ys, _room(frame.height - TOP - BOTTOM, 15.0)):
        y = frame.y(value)
        if not frame.cells:
            drawn.append(f'<line class="grid" x1="{frame.left}" x2="{edge}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(
            f'<text x="{frame.left - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(_short(text, LONGEST))}</text>'
        )
    names = [frame.panel.x.names[at] for at in thinned(frame.panel.x, len(frame.panel.x.names) or 1)]
    longest = max(map(len, names), default=5)
    for value, text in _labels(frame.panel.x, frame.xs, _room(edge - frame.left, (longest + 1) * LETTER)):
        half = len(text) * LETTER / 2
        x = min(max(frame.x(value), half), frame.width - half)  # a long word at the edge stays on the sheet
        drawn.append(f'<text x="{x:.1f}" y="{foot + 15}" text-anchor="middle">{escape(text)}</text>')
    middle = (frame.left + edge) / 2
    name = escape(frame.panel.x.label)
    drawn.append(f'<text class="axis" x="{middle:.0f}" y="{frame.height - 5}" text-anchor="middle">{name}</text>')
    if frame.panel.y.label:
        y = (TOP + foot) / 2
        name = escape(frame.panel.y.label)
        drawn.append(
            f'<text class="axis" x="11" y="{y:.0f}" text-anchor="middle" transform="rotate(-90 11 {y:.0f})">{name}</text>'
        )
    return "".join(drawn)


def _labels(axis: Axis, span: tuple[float, float], most: int) -> list[tuple[float, str]]:
    """Ticks with their words."""
    if axis.bare:
        return []
    if axis.names:
        return [(float(at), axis.names[at]) for at in thinned(axis, most)]
    if axis.log:
        values = decades(10 ** span[0], 10 ** span[1])
        return [(value, number(value)) for value in values[:: math.ceil(len(values) / max(most, 1)) or 1]]
    values = ticks(*span, max(2, min(most, 5)))
    return list(zip(values, in_words(values), strict=True))


def _room(length: int, each: float) -> int:
    """How many labels fit."""
    return max(1, int(length / each))


def _scaled(panel: Panel, direction: str) -> tuple[float, float]:
    """The span of an axis, in powers of ten where it is logarithmic."""
    low, high = panel.span(direction)
    axis: Axis = getattr(panel, direction)
    if axis.log:
        low, high = math.log10(low), math.log10(high)
        return low - 0.06 * (high - low or 1), high + 0.06 * (high - low or 1)
    if axis.names and not panel.cells and high > low:
        return low - 0.02 * (high - low), high + 0.02 * (high - low)
    return low, high


def _equal(
    xs: tuple[float, float], ys: tuple[float, float], wide: float, tall: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Both spans, the one that has room to spare made longer, so that a unit is as long on both axes.

    >>> _equal((0.0, 1.0), (0.0, 1.0), 200.0, 100.0)
    ((-0.5, 1.5), (0.0, 1.0))
    """
    unit = max((xs[1] - xs[0]) / wide, (ys[1] - ys[0]) / tall)
    (left, right), (low, high) = (
        (sum(span) / 2 - unit * room / 2, sum(span) / 2 + unit * room / 2) for span, room in ((xs, wide), (ys, tall))
    )
    return (left, right), (low, high)


def _margin(panel: Panel) -> int:
    """Room for the words on the left."""
    if panel.y.bare:
        return 26 if panel.y.label else 10
    longest = max((len(name) for name in panel.y.names), default=5)
    return round(min(longest, LONGEST) * LETTER) + (28 if panel.y.label else 16)


def _at(frame: Frame, x: float, y: float) -> tuple[float, float]:
    return frame.x(x), frame.y(y)


def _there(frame: Frame, y: float) -> bool:
    return math.isfinite(y) and (y > 0 or not frame.panel.y.log)


def _pieces(frame: Frame, mark: Line) -> list[list[tuple[float, float]]]:
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(mark.x, mark.y, strict=True):
        if _there(frame, float(y)):
            pieces[-1].append(_at(frame, float(x), float(y)))
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _short(text: str, letters: int) -> str:
    return text if len(text) <= max(letters, 2) else text[: max(letters - 1, 1)] + "…"
