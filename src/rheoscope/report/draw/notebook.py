"""Pictures for notebooks: plotly, with the same numbers under the pointer."""

from typing import Any

from rheoscope.report.picture import Axis, Cells, Line, Panel, Picture, Shape, Word, colour_of, decades, number, thinned
from rheoscope.report.style import INK, MUTED, PAPER
from rheoscope.shapes import RheoscopeError

SPACE = "\u2002"
"""Between a word and its dot; plotly drops others."""


def in_notebook(picture: Picture) -> Any:
    """All panels of a picture as one plotly Figure."""
    try:
        from plotly.subplots import make_subplots
    except ImportError as error:
        raise RheoscopeError(
            "figures for notebooks need plotly; type pip install 'rheoscope[notebook]', or rs.plot for matplotlib"
        ) from error
    rows = picture.rows()
    heights = [max(panel.height for panel in row) for row in rows]
    placed = [
        (panel, at + 1, sum(p.columns for p in row[:k]) + 1)
        for at, row in enumerate(rows)
        for k, panel in enumerate(row)
    ]
    figure = make_subplots(
        len(rows),
        3,
        specs=specs(rows),
        subplot_titles=[escaped(panel.title) for panel, _, _ in placed],
        row_heights=heights,
        horizontal_spacing=between(picture),
        vertical_spacing=min(130 / (160 + 310 * sum(heights)), 0.9 / len(rows)),
    )
    for at, (panel, row, column) in enumerate(placed):
        figure.update_xaxes(**axis_of(panel.x, panel, "x"), row=row, col=column)
        figure.update_yaxes(**axis_of(panel.y, panel, "y"), row=row, col=column)
        place = figure.get_subplot(row, column)
        if panel.equal:
            figure.update_yaxes(scaleanchor=place.yaxis.anchor, scaleratio=1, row=row, col=column)
        head(figure, panel, at, place)
    put(figure, placed)
    each_once(figure)
    title = {"text": escaped(picture.title), "x": 0.01, "y": 0.99, "yanchor": "top", "font": {"color": INK}}
    below = {"orientation": "h", "x": 0, "y": 0.005, "yanchor": "bottom", "yref": "container"}
    figure.update_layout(template="plotly_white", title=title, height=160 + 310 * sum(heights), legend=below)
    return figure


def between(picture: Picture) -> float:
    """Room between panels for the names on the left of them, and for scales of colours on their right."""
    longest = max((len(name) for panel in picture.panels for name in panel.y.names), default=0)
    scales = 0.045 * any(panel.cells for panel in picture.panels)
    return min(0.05 + 0.006 * min(longest, 16), 0.14) + scales


def head(figure: Any, panel: Panel, at: int, place: Any) -> None:
    """The title of a panel on its left, and its key: in the line below where it fits, else inside."""
    (left, right), top = place.xaxis.domain, place.yaxis.domain[1]
    figure.layout.annotations[at].update(x=left, xanchor="left", yshift=22, font={"size": 13, "color": INK})
    if panel.cells or len(panel.key) < 2:
        return
    fits = sum(42 + 5 * len(name) for name in panel.key) < 1000 * (right - left)
    spot = (
        {"x": left, "xanchor": "left", "yanchor": "bottom"}
        if fits
        else {"x": right, "xanchor": "right", "yanchor": "top"}
    )
    look = {
        "orientation": "h" if fits else "v",
        "font": {"size": 10, "color": INK},
        "bgcolor": "rgba(255,255,255,0.6)",
    }
    figure.layout[f"legend{at + 2}"] = spot | look | {"y": top}


def each_once(figure: Any) -> None:
    """A name stands once in a key, whoever has it."""
    seen: set[tuple[str, str]] = set()
    for trace in figure.data:
        if trace.showlegend:
            trace.showlegend = (trace.legend, trace.name) not in seen
            seen.add((trace.legend, trace.name))


def specs(rows: list[list[Panel]]) -> list[list[dict[str, int] | None]]:
    """The grid as plotly wants it: a cell that is covered by its neighbour is None, and so is one that stays empty."""
    table: list[list[dict[str, int] | None]] = []
    for row in rows:
        cells: list[dict[str, int] | None] = []
        for panel in row:
            cells += [{"colspan": panel.columns}, *[None] * (panel.columns - 1)]
        table.append([*cells, *[None] * (3 - len(cells))])
    return table


def put(figure: Any, placed: list[tuple[Panel, int, int]]) -> None:
    """Everything that stands on the panels, in one call: plotly looks at the whole figure again at each."""
    traces, frames, rows, columns = [], [], [], []
    for at, (panel, row, column) in enumerate(placed):
        place = figure.get_subplot(row, column)
        for mark in panel.marks:
            traces.append(drawn(mark, panel, place, "legend" if panel.cells else f"legend{at + 2}"))
            rows.append(row)
            columns.append(column)
        axes = {"xref": place.yaxis.anchor, "yref": place.xaxis.anchor}
        frames += [framed(cell) | axes for cells in panel.maps if not len(cells.texts) for cell in cells.marked]
    figure.add_traces(traces, rows=rows, cols=columns)
    figure.update_layout(shapes=frames)


def drawn(mark: Any, panel: Panel, place: Any, legend: str) -> Any:
    """A mark as a trace."""
    from plotly import graph_objects as go

    if isinstance(mark, Word):
        trace: Any = word(mark)
    elif isinstance(mark, Shape):
        trace = go.Scatter(
            x=list(mark.x), y=list(mark.y), fill="toself", mode="none", fillcolor=colour_of(mark.colour),
            opacity=mark.opacity, hoveron="fills", text=escaped(mark.tip), hoverinfo="text", name=escaped(mark.name),
        )  # fmt: skip
    elif isinstance(mark, Cells):
        trace = heat(mark, place)
    else:
        trace = line(mark, panel)
    named = getattr(mark, "name", "") in panel.key and (panel.cells or len(panel.key) > 1)
    trace.update(showlegend=named, **({"legend": legend} if named else {}))
    return trace


def framed(cell: tuple[int, int]) -> dict[str, Any]:
    row, column = cell
    edge = {"color": INK, "width": 1.5}
    return {"type": "rect", "x0": column - 0.5, "x1": column + 0.5, "y0": row - 0.5, "y1": row + 0.5, "line": edge}


def word(mark: Word) -> Any:
    from plotly import graph_objects as go

    anchor = {
        "left": "middle left", "right": "middle right", "above": "top center", "below": "bottom center", "middle": "middle center"
    }[mark.side]  # fmt: skip
    text = escaped(mark.text) if mark.side == "middle" else f"{SPACE}{escaped(mark.text)}{SPACE}"
    text = f"<b> {text} </b>" if mark.strong else text  # room for a ring
    return go.Scatter(
        x=[mark.x], y=[mark.y], text=[text], mode="text", textposition=anchor, textfont={"size": 10}, hoverinfo="skip"
    )


def line(mark: Line, panel: Panel) -> Any:
    from plotly import graph_objects as go

    names = [escaped(panel.x.names[int(x)]) if panel.x.names else x for x in mark.x]
    told = [escaped(tip) for tip in mark.tips] or names
    template = "%{customdata}<extra></extra>" if len(mark.tips) else escaped(mark.tip) or "%{customdata}: %{y:.4g}"
    dash = "dash" if mark.style == "dashed" else "solid"
    hair, mute = mark.style == "hair", panel.cells or not (mark.name or mark.answers)
    size, symbol = {"rings": (12, "circle-open"), "stars": (13, "star")}.get(mark.style, (6, "circle"))
    edge = (
        {"color": colour_of(mark.colour), "width": 2}
        if mark.style == "rings"
        else {"color": PAPER, "width": 1.0 * panel.cells}
    )
    return go.Scatter(
        x=list(mark.x) or [None], y=list(mark.y) or [None], name=escaped(mark.name), customdata=told,
        hovertemplate=None if mute else template, hoverinfo="skip" if mute else None,
        mode="markers" if mark.style in ("dots", "rings", "stars") else "lines", opacity=0.4 if hair else 1,
        line={"color": colour_of(mark.colour), "dash": dash, "width": 1 if mark.tip or hair else 2},
        marker={"color": colour_of(mark.colour), "size": size, "symbol": symbol, "line": edge},
    )  # fmt: skip


def heat(cells: Cells, place: Any) -> Any:
    from plotly import graph_objects as go

    (low, _), _, (high, _) = cells.scale
    tips = cells.tips or [[f"{value:.4g}" for value in row] for row in cells.values]
    colours = [[at, on_paper(colour_of(side), abs(shade))] for shade, side, at in cells.colours]
    return go.Heatmap(
        z=cells.shades, zmin=low, zmax=high, colorscale=colours, colorbar=scale(cells, place), xgap=1, ygap=1,
        text=[[escaped(text) for text in row] for row in cells.texts] or None, texttemplate="%{text}" if cells.texts else None,
        hovertext=[[escaped(tip) for tip in row] for row in tips], hoverinfo="text",
    )  # fmt: skip


def scale(cells: Cells, place: Any) -> dict[str, Any]:
    """Which colour is how much, on the right of a map: both ends, a number between them, what they measure."""
    (shades, words), (low, high) = zip(*cells.scale, strict=True), place.yaxis.domain
    return {
        "x": place.xaxis.domain[1], "xpad": 4, "y": (low + high) / 2, "len": high - low, "ypad": 0, "thickness": 8,
        "tickvals": list(shades), "ticktext": list(words), "tickfont": {"size": 9, "color": MUTED}, "outlinewidth": 0,
        "title": {"text": escaped(cells.name), "side": "right", "font": {"size": 9, "color": MUTED}},
    }  # fmt: skip


def on_paper(colour: str, shade: float) -> str:
    """A colour as faint as its shade, on the paper.

    >>> on_paper("#2f6fbf", 0.0), on_paper("#2f6fbf", 1.0)
    ('#ffffff', '#2f6fbf')
    """
    parts = ((int(colour[at : at + 2], 16), int(PAPER[at : at + 2], 16)) for at in (1, 3, 5))
    return "#" + "".join(f"{round(shade * ink + (1 - shade) * paper):02x}" for ink, paper in parts)


def axis_of(axis: Axis, panel: Panel, direction: str) -> dict[str, Any]:
    """An axis in plotly's words."""
    told: dict[str, Any] = {"title": {"text": escaped(axis.label), "font": {"size": 11, "color": MUTED}}}
    if axis.log:
        values = decades(*panel.span(direction))
        told |= {"type": "log", "tickvals": values, "ticktext": [number(value) for value in values]}
    elif panel.cells and direction == "y":
        told |= {"autorange": "reversed"}
    else:
        told |= {"range": list(panel.span(direction))}
    if axis.bare:
        told |= {"showticklabels": False, "showgrid": False, "zeroline": False}
    elif axis.names:
        at = thinned(axis, 12 if len(axis.names) <= 40 else 8)
        told |= {"tickvals": at, "ticktext": [escaped(axis.names[i]) for i in at]}
    return told


def escaped(text: str) -> str:
    """plotly reads some HTML in its texts."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", "<br>")
