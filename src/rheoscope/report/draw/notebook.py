"""Pictures for notebooks: plotly, with the same numbers under the pointer."""

from typing import Any

from rheoscope.report.picture import Axis, Cells, Line, Panel, Picture, Shape, Word, colour_of, thinned
from rheoscope.report.style import INK, MUTED, PAPER
from rheoscope.shapes import RheoscopeError


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
    titles = [escaped(panel.title) for panel, _, _ in placed]
    figure = make_subplots(
        len(rows),
        3,
        specs=specs(rows),
        subplot_titles=titles,
        row_heights=heights,
        vertical_spacing=min(80 / (120 + 280 * sum(heights)), 0.9 / len(rows)),
    )
    for panel, row, column in placed:
        for mark in panel.marks:
            put(figure, mark, panel, row, column)
        figure.update_xaxes(**axis_of(panel.x, panel, "x"), row=row, col=column)
        figure.update_yaxes(**axis_of(panel.y, panel, "y"), row=row, col=column)
    title = {"text": escaped(picture.title), "x": 0.01, "font": {"color": INK}}
    figure.update_layout(template="plotly_white", title=title, height=120 + 280 * sum(heights), showlegend=False)
    return figure


def specs(rows: list[list[Panel]]) -> list[list[dict[str, int] | None]]:
    """The grid as plotly wants it: a cell that is covered by its neighbour is None, and so is one that stays empty."""
    table: list[list[dict[str, int] | None]] = []
    for row in rows:
        cells: list[dict[str, int] | None] = []
        for panel in row:
            cells += [{"colspan": panel.columns}, *[None] * (panel.columns - 1)]
        table.append([*cells, *[None] * (3 - len(cells))])
    return table


def put(figure: Any, mark: Any, panel: Panel, row: int, column: int) -> None:
    from plotly import graph_objects as go

    if isinstance(mark, Word):
        anchor = {"left": "middle left", "right": "middle right", "middle": "middle center"}[mark.side]
        drawn: Any = go.Scatter(
            x=[mark.x], y=[mark.y], text=[escaped(mark.text)], mode="text", textposition=anchor, hoverinfo="skip"
        )
    elif isinstance(mark, Shape):
        drawn = go.Scatter(
            x=list(mark.x), y=list(mark.y), fill="toself", mode="none", fillcolor=colour_of(mark.colour),
            opacity=mark.opacity, hoveron="fills", text=escaped(mark.tip), hoverinfo="text", name=escaped(mark.name),
        )  # fmt: skip
    elif isinstance(mark, Cells):
        drawn = heat(mark, panel)
    else:
        drawn = line(mark, panel)
    figure.add_trace(drawn, row=row, col=column)


def line(mark: Line, panel: Panel) -> Any:
    from plotly import graph_objects as go

    names = [escaped(panel.x.names[int(x)]) if panel.x.names else x for x in mark.x]
    template = "%{customdata}: %{y:.4g}" if not mark.tip else escaped(mark.tip)
    return go.Scatter(
        x=list(mark.x), y=list(mark.y), name=escaped(mark.name), customdata=names, hovertemplate=template,
        mode="markers" if mark.style == "dots" else "lines",
        line={"color": colour_of(mark.colour), "dash": "dash" if mark.style == "dashed" else "solid", "width": 1 if mark.tip else 2},
        marker={"color": colour_of(mark.colour), "size": 6},
    )  # fmt: skip


def heat(cells: Cells, panel: Panel) -> Any:
    from plotly import graph_objects as go

    shades = cells.shades
    tips = cells.tips or [[f"{value:.4g}" for value in row] for row in cells.values]
    scale = [[0, colour_of("second")], [0.5, PAPER], [1, colour_of("first")]]
    return go.Heatmap(
        z=shades, zmin=-1, zmax=1, colorscale=scale, showscale=False, xgap=1, ygap=1,
        text=[[escaped(text) for text in row] for row in cells.texts] or None, texttemplate="%{text}" if cells.texts else None,
        hovertext=[[escaped(tip) for tip in row] for row in tips], hoverinfo="text",
    )  # fmt: skip


def axis_of(axis: Axis, panel: Panel, direction: str) -> dict[str, Any]:
    """An axis in plotly's words."""
    cells = any(isinstance(mark, Cells) for mark in panel.marks)
    told: dict[str, Any] = {"title": {"text": escaped(axis.label), "font": {"size": 11, "color": MUTED}}}
    if axis.log:
        told |= {"type": "log"}
    elif cells and direction == "y":
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
