"""Pictures as inline SVG for pages: a few kilobytes per panel, in the colours of the page, with tooltips.

A chart library would be larger than a whole report (plotly.js: 4.6 MB). These drawings need no script.
"""

import math

from rheoscope.messages.message import join
from rheoscope.picture.picture import (
    MISSING_CELL,
    Axis,
    Cells,
    Label,
    Line,
    Panel,
    Photo,
    Picture,
    Shape,
    colour_of,
    format_value,
    log_ticks,
    thin_labels,
    tick_labels,
    ticks,
)
from rheoscope.report.draw.jpeg_url import jpeg_url
from rheoscope.report.html_text import html_label, html_text, label_text

COLUMN_WIDTH, ROW_HEIGHT, COLUMN_GAP = 360, 236, 28
TOP_MARGIN, RIGHT_MARGIN, BOTTOM_MARGIN = 10, 12, 36
LETTER_WIDTH = 6.2
"""Mean width of a letter of 11 units."""
MAX_LABEL_CHARS = 20
"""The longest label of the vertical axis; longer ones are truncated."""


MANY_DOTS, SMALL_RADIUS = 60, 2.1
"""A series of more dots than this has small ones."""


class PanelFrame:
    """The coordinates of a panel: from data to pixels."""

    def __init__(self, panel: Panel) -> None:
        self.width = COLUMN_WIDTH * panel.columns + COLUMN_GAP * (panel.columns - 1)
        self.height = round(ROW_HEIGHT * panel.height)
        self.left_margin = _left_margin(panel)
        self.panel, self.is_map, self.counts_from_top = panel, panel.is_map, panel.counts_from_top
        self.x_range, self.y_range = _axis_range(panel, "x"), _axis_range(panel, "y")
        if panel.equal:
            self.x_range, self.y_range = _equalise_units(
                self.x_range,
                self.y_range,
                self.width - self.left_margin - RIGHT_MARGIN,
                self.height - TOP_MARGIN - BOTTOM_MARGIN,
            )

    def x(self, value: float) -> float:
        return self.left_margin + self.fraction(value, self.x_range, self.panel.x) * (
            self.width - self.left_margin - RIGHT_MARGIN
        )

    def y(self, value: float) -> float:
        fraction = self.fraction(value, self.y_range, self.panel.y)
        return TOP_MARGIN + (fraction if self.counts_from_top else 1 - fraction) * (
            self.height - TOP_MARGIN - BOTTOM_MARGIN
        )

    @staticmethod
    def fraction(value: float, span: tuple[float, float], axis: Axis) -> float:
        low, high = span
        value = math.log10(value) if axis.log else value
        return (value - low) / (high - low) if high > low else 0.5


def picture_html(picture: Picture) -> str:
    """All panels of a picture as HTML, with caption and legend. Maps share one legend."""
    header = (
        f'<p class="caption">{html_text(picture.caption)}</p>{legend_html(picture.legend) if picture.legend else ""}'
    )
    return f'{header}<div class="panels">{"".join(map(panel_html, picture.panels))}</div>'


def panel_html(panel: Panel) -> str:
    """A panel with its title, whose tooltip explains it, and its legend."""
    header = f'<h3><span title="{html_text(panel.about)}">{html_text(panel.title)}</span></h3>'
    return f'<figure class="{_figure_class(panel)}">{header}{_legend_and_image(panel)}</figure>'


def captioned_html(panel: Panel) -> str:
    """A panel with its title and its legend. What explains it is visible below."""
    header, caption = f"<h3>{html_text(panel.title)}</h3>", f"<figcaption>{html_text(panel.about)}</figcaption>"
    return f'<figure class="{_figure_class(panel)}">{header}{_legend_and_image(panel)}{caption}</figure>'


def _figure_class(panel: Panel) -> str:
    return f"of{panel.columns}{' tall' * (panel.height > 1.5 and panel.columns == 2)}"


def _legend_and_image(panel: Panel) -> str:
    has_text = panel.columns == 3 or any(
        isinstance(mark, Label) or (isinstance(mark, Cells) and mark.texts) for mark in panel.marks
    )
    min_width_style = (
        f' style="min-width:{round(0.75 * PanelFrame(panel).width)}px"' if has_text and panel.columns > 1 else ""
    )
    image = panel_svg(panel).replace("<svg", f"<svg{min_width_style}", 1)
    legend = (
        "".join(map(scale_html, panel.cell_maps))
        if panel.is_map
        else legend_html(panel.legend)
        if len(panel.legend) > 1
        else ""
    )
    return f'{legend}<div class="scroll">{image}</div>'


def scale_html(mark: Cells) -> str:
    """The colour scale: a bar with its ticks and the name of the quantity.

    >>> import numpy as np
    >>> scale_html(Cells(np.array([[0.5]]), name="share")).count("<b")
    3
    """
    offsets = [f"{100 * fraction:.0f}%" for fraction in mark.tick_fractions]
    colours = ", ".join(
        f"{shade_css(colour, abs(shade))} {100 * fraction:.0f}%" for shade, colour, fraction in mark.colour_stops
    )
    labels = "".join(
        f'<b style="left:{offset}">{html_text(label)}</b>'
        for offset, (_, label) in zip(offsets, mark.scale_ticks, strict=True)
    )
    bar = f'<i style="background:linear-gradient(to right, {colours})">{labels}</i>'
    return f'<div class="scale">{bar}<span>{html_text(mark.name)}</span></div>'


def shade_css(colour: str, shade: float) -> str:
    """A palette colour in CSS, with the opacity of a cell of this shade."""
    return f"{colour_of(colour)}{round(255 * shade):02x}"


def legend_html(entries: dict[str, tuple[str, str]]) -> str:
    """The legend as a list."""
    items = (
        f'<li><i class="{style}" style="--c:{colour_of(colour)}"></i>{html_text(name)}</li>'
        for name, (colour, style) in entries.items()
    )
    return f'<ul class="key">{"".join(items)}</ul>'


def panel_svg(panel: Panel) -> str:
    """One panel as a scalable SVG element with selectable text.

    >>> one = Panel("Speed", "how fast", (Line("speed", [0, 1], [1.0, 2.0]),))
    >>> panel_svg(one).count("<polyline"), panel_svg(one).count('class="hit"')
    (1, 2)
    """
    frame = PanelFrame(panel)
    label = html_text(join(". ", [panel.title, panel.about]))
    content = axes_svg(frame) + "".join(mark_elements(frame)) + hover_columns(frame)
    return f'<svg viewBox="0 0 {frame.width} {frame.height}" role="img" aria-label="{label}">{content}</svg>'


def mark_elements(frame: PanelFrame) -> list[str]:
    renderers = {Line: line_svg, Shape: shape_svg, Cells: cells_svg, Label: label_svg, Photo: photo_svg}
    return [renderers[type(mark)](frame, mark) for mark in frame.panel.marks]  # type: ignore[operator]


def line_svg(frame: PanelFrame, mark: Line) -> str:
    """A line is broken where a value is missing."""
    if mark.style in MARKERS:
        return markers_svg(frame, mark)
    tip = f"<title>{html_text(mark.tip)}</title>" if mark.tip else ""
    base_class = "path" if mark.tip else "line"
    css_class = {"solid": base_class, "dashed": f"{base_class} null", "hair": "hair"}[mark.style]
    return "".join(
        f'<polyline class="{css_class}" stroke="{colour_of(mark.colour)}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in segment)}">'
        f"{tip}</polyline>"
        for segment in _segments(frame, mark)
    )


def markers_svg(frame: PanelFrame, mark: Line) -> str:
    """Dots, rings or stars, each with its own tooltip or with a shared one. Dots without tooltips are one element."""
    if mark.style == "dots" and not mark.has_tip and not frame.is_map:
        return dots_svg(frame, mark)
    radius, colour, elements = dot_radius(frame), colour_of(mark.colour), []
    for index, (x, y) in enumerate(zip(mark.x, mark.y, strict=True)):
        if _is_drawable(frame, float(y)):
            tip_text = mark.tips[index] if len(mark.tips) else mark.tip
            tip = f"<title>{html_text(tip_text)}</title>" if tip_text else ""
            elements.append(
                MARKERS[mark.style](*_to_canvas(frame, float(x), float(y)), radius, colour, tip, frame.is_map)
            )
    return "".join(elements)


def dots_svg(frame: PanelFrame, mark: Line) -> str:
    """All dots of a series as one path, which takes a fifth of the space. Many dots are smaller."""
    places = [_to_canvas(frame, x, y) for x, y in zip(mark.x, mark.y, strict=True) if _is_drawable(frame, float(y))]
    width = 2 * (dot_radius(frame) if len(places) <= MANY_DOTS else SMALL_RADIUS)
    path = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in places)
    return f'<path class="dots" stroke="{colour_of(mark.colour)}" stroke-width="{width:g}" d="{path}"/>'


def dot_svg(x: float, y: float, radius: float, colour: str, tip: str, on_map: bool) -> str:
    return f'<circle{" class=on" * on_map} cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{colour}">{tip}</circle>'


def ring_svg(x: float, y: float, radius: float, colour: str, tip: str, on_map: bool) -> str:
    return f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="{2 * radius:.1f}" stroke="{colour}">{tip}</circle>'


def star_svg(x: float, y: float, radius: float, colour: str, tip: str, on_map: bool) -> str:
    vertices = [(radius * (2.4 if k % 2 == 0 else 1.0), math.pi * (k / 5 - 0.5)) for k in range(10)]
    points = " ".join(
        f"{x + distance * math.cos(angle):.1f},{y + distance * math.sin(angle):.1f}" for distance, angle in vertices
    )
    return f'<polygon class="star" points="{points}" fill="{colour}">{tip}</polygon>'


MARKERS = {"dots": dot_svg, "rings": ring_svg, "stars": star_svg}


def dot_radius(frame: PanelFrame) -> float:
    """The radius of a dot. On a map it is smaller than a cell."""
    if not frame.is_map:
        return 3.2
    return min(4.0, 0.3 * abs(frame.x(1.0) - frame.x(0.0)), 0.36 * abs(frame.y(1.0) - frame.y(0.0)))


def shape_svg(frame: PanelFrame, mark: Shape) -> str:
    points = " ".join(f"{frame.x(float(x)):.1f},{frame.y(float(y)):.1f}" for x, y in zip(mark.x, mark.y, strict=True))
    attributes = f'class="shape" fill="{colour_of(mark.colour)}" fill-opacity="{mark.opacity:g}"'
    return f'<polygon {attributes} points="{points}"><title>{html_text(mark.tip or mark.name)}</title></polygon>'


def photo_svg(frame: PanelFrame, mark: Photo) -> str:
    """The image, stretched over its patches. Square patches keep their shape in a panel with equal units."""
    left, right, top, bottom = frame.x(-0.5), frame.x(mark.columns - 0.5), frame.y(-0.5), frame.y(mark.rows - 0.5)
    box = f'x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}"'
    return f'<image {box} preserveAspectRatio="none" href="{jpeg_url(mark.pixels)}"/>'


def cells_svg(frame: PanelFrame, mark: Cells) -> str:
    shades, (rows, columns) = mark.shades, mark.values.shape
    cell_width, cell_height = (
        frame.x(1.0) - frame.x(0.0) if columns > 1 else frame.width,
        frame.y(1.0) - frame.y(0.0) if rows > 1 else ROW_HEIGHT,
    )
    elements = []
    for row in range(rows):
        for column in range(columns):
            x, y = frame.x(float(column)) - cell_width / 2, frame.y(float(row)) - cell_height / 2
            elements.append(cell_svg(mark, row, column, float(shades[row, column]), (x, y, cell_width, cell_height)))
    return "".join(elements)


def cell_svg(mark: Cells, row: int, column: int, shade: float, box: tuple[float, float, float, float]) -> str:
    x, y, width, height = box
    colour, opacity = MISSING_CELL if math.isnan(shade) else ("first" if shade >= 0 else "second", abs(shade))
    tip = mark.tips[row][column] if mark.tips else format_value(float(mark.values[row, column]))
    frame_class = ' class="marked"' if (row, column) in mark.marked else ""
    element = (
        f'<g class="cell"><rect{frame_class} x="{x + 0.5:.1f}" y="{y + 0.5:.1f}" width="{width - 1:.1f}" height="{height - 1:.1f}" '
        f'fill="{colour_of(colour)}" fill-opacity="{opacity:.2f}"/><title>{html_text(tip)}</title>'
    )
    if mark.texts:
        text_class = ' class="on"' if abs(shade) > 0.65 else ""
        text = _truncate(label_text(mark.texts[row][column]), int(width / LETTER_WIDTH) - 1)
        element += f'<text{text_class} x="{x + width / 2:.1f}" y="{y + height / 2 + 4:.1f}" text-anchor="middle">{html_label(text)}</text>'
    return element + "</g>"


def label_svg(frame: PanelFrame, mark: Label) -> str:
    offset = 10 if mark.strong else 6
    anchor, dx, dy = {
        "left": ("end", -offset, 4),
        "right": ("start", offset, 4),
        "above": ("middle", 0, -offset),
        "below": ("middle", 0, offset + 8),
        "middle": ("middle", 0, 4),
    }[mark.side]
    x, y = frame.x(float(mark.x)) + dx, frame.y(float(mark.y)) + dy
    text = _truncate(label_text(mark.text), 18 if mark.side != "middle" else int(frame.width / LETTER_WIDTH) - 2)
    css_class = "word strong" if mark.strong else "word"
    return f'<text class="{css_class}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html_label(text)}</text>'


def hover_columns(frame: PanelFrame) -> str:
    """A tooltip with all values at every x, unless the marks have tooltips of their own."""
    series = [mark for mark in frame.panel.marks if isinstance(mark, Line) and mark.name]
    if frame.is_map or any(mark.has_tip for mark in series) or not series:
        return ""
    tips_by_x: dict[float, list[str]] = {}
    for mark in series:
        for x, y in zip(mark.x, mark.y, strict=True):
            tips_by_x.setdefault(float(x), []).append(f"{mark.name}: {format_value(float(y))}")
    x_values = sorted(tips_by_x)
    elements = []
    for index, x in enumerate(x_values):
        left = frame.left_margin if index == 0 else (frame.x(x_values[index - 1]) + frame.x(x)) / 2
        right = (
            frame.width - RIGHT_MARGIN
            if index == len(x_values) - 1
            else (frame.x(x) + frame.x(x_values[index + 1])) / 2
        )
        names = frame.panel.x.names
        tip = "\n".join([names[int(x)] if names else f"{frame.panel.x.label} {format_value(x)}".strip(), *tips_by_x[x]])
        elements.append(
            f'<rect class="hit" x="{left:.1f}" y="{TOP_MARGIN}" width="{right - left:.1f}" '
            f'height="{frame.height - TOP_MARGIN - BOTTOM_MARGIN}">'
            f"<title>{html_text(tip)}</title></rect>"
        )
    return "".join(elements)


def axes_svg(frame: PanelFrame) -> str:
    """Grid lines, tick labels and names of both axes."""
    bottom, right = frame.height - BOTTOM_MARGIN, frame.width - RIGHT_MARGIN
    elements = []
    for value, text in _tick_texts(
        frame.panel.y, frame.y_range, _n_fitting(frame.height - TOP_MARGIN - BOTTOM_MARGIN, 15.0)
    ):
        y = frame.y(value)
        if not frame.is_map:
            elements.append(f'<line class="grid" x1="{frame.left_margin}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        label = html_label(_truncate(label_text(text), MAX_LABEL_CHARS))
        elements.append(f'<text x="{frame.left_margin - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    names = [frame.panel.x.names[index] for index in thin_labels(frame.panel.x, len(frame.panel.x.names) or 1)]
    max_chars = max(map(len, names), default=5)
    for value, text in _tick_texts(
        frame.panel.x, frame.x_range, _n_fitting(right - frame.left_margin, (max_chars + 1) * LETTER_WIDTH)
    ):
        half_width = len(text) * LETTER_WIDTH / 2
        x = min(max(frame.x(value), half_width), frame.width - half_width)  # long labels stay inside the drawing
        elements.append(f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{html_label(text)}</text>')
    centre = (frame.left_margin + right) / 2
    label = html_text(frame.panel.x.label)
    elements.append(f'<text class="axis" x="{centre:.0f}" y="{frame.height - 5}" text-anchor="middle">{label}</text>')
    if frame.panel.y.label:
        y = (TOP_MARGIN + bottom) / 2
        label = html_text(frame.panel.y.label)
        elements.append(
            f'<text class="axis" x="11" y="{y:.0f}" text-anchor="middle" transform="rotate(-90 11 {y:.0f})">{label}</text>'
        )
    return "".join(elements)


def _tick_texts(axis: Axis, span: tuple[float, float], max_ticks: int) -> list[tuple[float, str]]:
    """Ticks with their labels."""
    if axis.bare:
        return []
    if axis.names:
        return [(float(index), axis.names[index]) for index in thin_labels(axis, max_ticks)]
    if axis.log:
        values = log_ticks(10 ** span[0], 10 ** span[1])
        return [(value, format_value(value)) for value in values[:: math.ceil(len(values) / max(max_ticks, 1)) or 1]]
    values = ticks(*span, max(2, min(max_ticks, 5)))
    return list(zip(values, tick_labels(values), strict=True))


def _n_fitting(length: int, label_size: float) -> int:
    """The number of labels that fit."""
    return max(1, int(length / label_size))


def _axis_range(panel: Panel, direction: str) -> tuple[float, float]:
    """The range of an axis, in powers of ten if it is logarithmic."""
    low, high = panel.span(direction)
    axis: Axis = getattr(panel, direction)
    if axis.log:
        low, high = math.log10(low), math.log10(high)
        return low - 0.06 * (high - low or 1), high + 0.06 * (high - low or 1)
    if axis.names and not panel.is_map and high > low:
        return low - 0.02 * (high - low), high + 0.02 * (high - low)
    return low, high


def _equalise_units(
    x_range: tuple[float, float], y_range: tuple[float, float], width: float, height: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Both ranges, one of them extended so that a unit has the same length on both axes.

    >>> _equalise_units((0.0, 1.0), (0.0, 1.0), 200.0, 100.0)
    ((-0.5, 1.5), (0.0, 1.0))
    """
    unit = max((x_range[1] - x_range[0]) / width, (y_range[1] - y_range[0]) / height)
    (left, right), (low, high) = (
        (sum(span) / 2 - unit * size / 2, sum(span) / 2 + unit * size / 2)
        for span, size in ((x_range, width), (y_range, height))
    )
    return (left, right), (low, high)


def _left_margin(panel: Panel) -> int:
    """The width of the labels on the left."""
    if panel.y.bare:
        return 26 if panel.y.label else 10
    max_chars = max((len(name) for name in panel.y.names), default=5)
    return round(min(max_chars, MAX_LABEL_CHARS) * LETTER_WIDTH) + (28 if panel.y.label else 16)


def _to_canvas(frame: PanelFrame, x: float, y: float) -> tuple[float, float]:
    return frame.x(x), frame.y(y)


def _is_drawable(frame: PanelFrame, y: float) -> bool:
    return math.isfinite(y) and (y > 0 or not frame.panel.y.log)


def _segments(frame: PanelFrame, mark: Line) -> list[list[tuple[float, float]]]:
    segments: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(mark.x, mark.y, strict=True):
        if _is_drawable(frame, float(y)):
            segments[-1].append(_to_canvas(frame, float(x), float(y)))
        elif segments[-1]:
            segments.append([])
    return [segment for segment in segments if segment]


def _truncate(text: str, max_chars: int) -> str:
    return text if len(text) <= max(max_chars, 2) else text[: max(max_chars - 1, 1)] + "…"
