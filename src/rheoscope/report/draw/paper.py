"""Pictures as matplotlib figures, for papers."""

from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.messages.catalogue import render
from rheoscope.picture.picture import (
    MISSING_CELL,
    Axis,
    Cells,
    Label,
    Line,
    Mark,
    Panel,
    Photo,
    Picture,
    Shape,
    colour_of,
    thin_labels,
)
from rheoscope.report.html_text import label_text
from rheoscope.report.style import INK, MUTED, PAPER, figure_style, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURE_WIDTH, ROW_HEIGHT = 12.0, 2.9


def to_figure(picture: Picture) -> "Figure":
    """All panels of a picture on one sheet."""
    rows = picture.rows()
    heights = [max(panel.height for panel in row) for row in rows]
    with figure_style():
        figure = new_figure(FIGURE_WIDTH, ROW_HEIGHT * sum(heights) + 0.4)
        grid = figure.add_gridspec(len(rows), 3, height_ratios=heights)
        for row_index, row in enumerate(rows):
            first_column = 0
            for panel in row:
                draw_panel(figure.add_subplot(grid[row_index, first_column : first_column + panel.columns]), panel)
                first_column += panel.columns
        figure.suptitle(render(picture.title), x=0.01, ha="left", fontsize=11)
        if picture.legend:
            add_shared_legend(figure, picture)
    return figure


def add_shared_legend(figure: "Figure", picture: Picture) -> None:
    """The legend of all maps, once, below them."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], marker="o", linestyle="", color=colour_of(colour)) for colour, _ in picture.legend.values()
    ]
    figure.legend(
        handles, [render(name) for name in picture.legend], loc="outside lower left", ncols=8, frameon=False, fontsize=7
    )


def draw_panel(axes: "Axes", panel: Panel) -> None:
    """One panel: its marks in their order, then its axes and its legend."""
    for mark in panel.marks:
        draw_mark(axes, mark)
    for mark in panel.cell_maps:
        add_colour_bar(axes, mark, panel.height)
    style_axes(axes, panel)


def draw_mark(axes: "Axes", mark: Mark) -> None:
    if isinstance(mark, Line):
        draw_line(axes, mark)
    elif isinstance(mark, Shape):
        axes.fill(
            mark.x, mark.y, color=colour_of(mark.colour), alpha=mark.opacity, linewidth=0, label=render(mark.name)
        )
    elif isinstance(mark, Label):
        draw_label(axes, mark)
    elif isinstance(mark, Photo):
        axes.imshow(mark.pixels, extent=(-0.5, mark.columns - 0.5, mark.rows - 0.5, -0.5), aspect="auto")
    else:
        draw_cells(axes, mark)


def draw_line(axes: "Axes", mark: Line) -> None:
    styles: dict[str, dict[str, Any]] = {
        "solid": {"linewidth": 0.8 if mark.tip else 1.6},
        "dashed": {"linestyle": "--", "linewidth": 0.8 if mark.tip else 1.6},
        "hair": {"linewidth": 0.6, "alpha": 0.3},
        "dots": {"linestyle": "", "marker": "o", "markersize": 5 if axes.images else 3.5},
        "rings": {"linestyle": "", "marker": "o", "markersize": 9, "markerfacecolor": "none", "markeredgewidth": 1.6},
        "stars": {"linestyle": "", "marker": "*", "markersize": 11},
    }
    edge_style: dict[str, Any] = {"markeredgecolor": PAPER, "markeredgewidth": 0.7} if axes.images else {}
    axes.plot(
        mark.x,
        mark.y,
        color=colour_of(mark.colour),
        label="" if mark.has_tip else render(mark.name),
        **styles[mark.style] | edge_style,
    )


def draw_label(axes: "Axes", mark: Label) -> None:
    """A label next to its point, at the distance of a dot or a ring, with a pale outline."""
    from matplotlib.patheffects import withStroke

    dx, dy, ha, va = {
        "left": (-1, 0, "right", "center"),
        "right": (1, 0, "left", "center"),
        "above": (0, 1, "center", "bottom"),
        "below": (0, -1, "center", "top"),
        "middle": (0, 0, "center", "center"),
    }[mark.side]
    offset = 7 if mark.strong else 4
    axes.annotate(
        escape_dollars(label_text(mark.text)), (mark.x, mark.y), (offset * dx, offset * dy),
        textcoords="offset points", ha=ha, va=va, fontsize=7,
        color=INK, fontweight="bold" if mark.strong else "normal", annotation_clip=False,
        path_effects=[withStroke(linewidth=1.5, foreground=PAPER)],
    )  # fmt: skip


def draw_cells(axes: "Axes", cells: Cells) -> None:
    """A map of cells. Marked cells have bold text, or a frame if the map has no text."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgba
    from matplotlib.patches import Rectangle

    shades = cells.shades
    diverging_map = LinearSegmentedColormap.from_list("two", [colour_of("second"), PAPER, colour_of("first")])
    colour_map = diverging_map.with_extremes(bad=to_rgba(colour_of(MISSING_CELL[0]), MISSING_CELL[1]))
    opacity = np.nan_to_num(np.abs(shades), nan=1.0) if axes.images else None  # a photo remains visible
    axes.imshow(shades, cmap=colour_map, vmin=-1, vmax=1, aspect="auto", interpolation="nearest", alpha=opacity)
    for row, texts in enumerate(cells.texts):
        for column, text in enumerate(texts):
            is_dark = abs(shades[row, column]) > 0.6
            font_weight = "bold" if (row, column) in cells.marked else "normal"
            colour = PAPER if is_dark else INK
            axes.text(
                column,
                row,
                escape_dollars(label_text(text)),
                ha="center",
                va="center",
                fontsize=7,
                color=colour,
                fontweight=font_weight,
            )
    for row, column in cells.marked if not len(cells.texts) else ():
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=INK, linewidth=0.9))


def add_colour_bar(axes: "Axes", cells: Cells, height: float) -> None:
    """The colour bar on the right of a map, with its ticks and the name of the quantity."""
    aspect = ROW_HEIGHT * height / 0.16  # inches
    bar = axes.figure.colorbar(axes.images[-1], ax=axes, fraction=0.05, pad=0.02, aspect=aspect, shrink=0.92)
    shades, labels = zip(*cells.scale_ticks, strict=True)
    bar.ax.set_ylim(shades[0], shades[-1])
    bar.set_ticks(shades, labels=labels)
    bar.ax.tick_params(labelsize=7, length=0, pad=2)
    bar.outline.set_visible(False)
    bar.set_label(escape_dollars(render(cells.name)), fontsize=7, color=MUTED)


def escape_dollars(text: str) -> str:
    """Escape dollar signs, which start a formula in matplotlib."""
    return text.replace("$", r"\$")


def max_x_labels(panel: Panel) -> int:
    """The number of tick labels that fit below a panel."""
    max_chars = max((len(panel.x.names[index]) for index in thin_labels(panel.x, len(panel.x.names) or 1)), default=0)
    return max(2, 66 * panel.columns // (max_chars + 2))


def is_integer_axis(panel: Panel, axis: Axis) -> bool:
    """Whether all values along an axis are integers, so that it needs integer ticks."""
    direction = "x" if axis is panel.x else "y"
    lines = [np.asarray(getattr(mark, direction), dtype=float) for mark in panel.marks if isinstance(mark, Line)]
    return bool(lines) and all((line == np.round(line)).all() for line in lines if np.isfinite(line).all())


def style_axes(axes: "Axes", panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator

    has_legend = not panel.is_map and len(panel.legend) > 1
    legend_rows = add_legend(axes, panel) if has_legend else 0
    axes.set_title(render(panel.title), loc="left", fontsize=9, color=INK, pad=6 + 11 * legend_rows)
    for axis, mpl_axis, set_scale, set_limits in (
        (panel.x, axes.xaxis, axes.set_xscale, axes.set_xlim),
        (panel.y, axes.yaxis, axes.set_yscale, axes.set_ylim),
    ):
        if axis.log:
            set_scale("log")
        elif not panel.is_map:
            low, high = panel.span("x" if axis is panel.x else "y")
            padding = 0.02 * (high - low) if axis.names else 0.0
            ends = low - padding, high + padding
            set_limits(*(ends[::-1] if axis is panel.y and panel.counts_from_top else ends))
        label_axis(mpl_axis, axis, 16 if axis is panel.y else max_x_labels(panel))
        if not (axis.names or axis.log or axis.bare) and is_integer_axis(panel, axis):
            mpl_axis.set_major_locator(MaxNLocator(integer=True))
    if panel.equal:
        axes.set_aspect("equal", adjustable="box")
    axes.spines[["left", "bottom"]].set_visible(not panel.y.bare)


def add_legend(axes: "Axes", panel: Panel) -> int:
    """Put the legend between title and axes. Returns its number of rows."""
    max_chars, available_chars = max(len(render(name)) for name in panel.legend) + 6, 74 * panel.columns
    columns = max(1, min(len(panel.legend), available_chars // max_chars))
    style: dict[str, Any] = {"handlelength": 1.6, "columnspacing": 1.0, "borderaxespad": 0.2, "borderpad": 0.0}
    handles = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    axes.legend(
        handles.values(),
        handles,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=columns,
        frameon=False,
        fontsize=7,
        **style,
    )
    return -(-len(handles) // columns)


def label_axis(mpl_axis: object, axis: Axis, max_labels: int) -> None:
    mpl_axis.set_label_text(render(axis.label), color=MUTED)  # type: ignore[attr-defined]
    if axis.bare:
        mpl_axis.set_ticks([])  # type: ignore[attr-defined]
    elif axis.names:
        indices = thin_labels(axis, max_labels)
        mpl_axis.set_ticks(indices, [escape_dollars(label_text(axis.names[i])) for i in indices])  # type: ignore[attr-defined]
