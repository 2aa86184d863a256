"""Pictures for papers: matplotlib."""

from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.picture.picture import NONE, Axis, Cells, Line, Panel, Picture, Shape, Word, colour_of, thinned
from rheoscope.report.style import INK, MUTED, PAPER, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, ROW = 12.0, 2.9


def on_paper(picture: Picture) -> "Figure":
    """All panels of a picture on one sheet."""
    rows = picture.rows()
    heights = [max(panel.height for panel in row) for row in rows]
    with styled():
        figure = new_figure(WIDTH, ROW * sum(heights) + 0.4)
        grid = figure.add_gridspec(len(rows), 3, height_ratios=heights)
        for at, row in enumerate(rows):
            left = 0
            for panel in row:
                draw(figure.add_subplot(grid[at, left : left + panel.columns]), panel)
                left += panel.columns
        figure.suptitle(picture.title, x=0.01, ha="left", fontsize=11)
        if picture.key:
            share_key(figure, picture)
    return figure


def share_key(figure: "Figure", picture: Picture) -> None:
    """What stands on the maps, once for all of them, below."""
    from matplotlib.lines import Line2D

    dots = [Line2D([], [], marker="o", linestyle="", color=colour_of(colour)) for colour, _ in picture.key.values()]
    figure.legend(dots, list(picture.key), loc="outside lower left", ncols=8, frameon=False, fontsize=7)


def draw(axes: "Axes", panel: Panel) -> None:
    """One panel: its marks in their order, then its axes and its key."""
    for mark in panel.marks:
        put(axes, mark)
    for mark in panel.maps:
        scale(axes, mark, panel.height)
    dress(axes, panel)


def put(axes: "Axes", mark: Line | Shape | Cells | Word) -> None:
    if isinstance(mark, Line):
        put_line(axes, mark)
    elif isinstance(mark, Shape):
        axes.fill(mark.x, mark.y, color=colour_of(mark.colour), alpha=mark.opacity, linewidth=0, label=mark.name)
    elif isinstance(mark, Word):
        put_word(axes, mark)
    else:
        put_cells(axes, mark)


def put_line(axes: "Axes", mark: Line) -> None:
    looks: dict[str, dict[str, Any]] = {
        "solid": {"linewidth": 0.8 if mark.tip else 1.6},
        "dashed": {"linestyle": "--", "linewidth": 0.8 if mark.tip else 1.6},
        "hair": {"linewidth": 0.6, "alpha": 0.3},
        "dots": {"linestyle": "", "marker": "o", "markersize": 5 if axes.images else 3.5},
        "rings": {"linestyle": "", "marker": "o", "markersize": 9, "markerfacecolor": "none", "markeredgewidth": 1.6},
        "stars": {"linestyle": "", "marker": "*", "markersize": 11},
    }
    edge: dict[str, Any] = {"markeredgecolor": PAPER, "markeredgewidth": 0.7} if axes.images else {}
    axes.plot(
        mark.x,
        mark.y,
        color=colour_of(mark.colour),
        label="" if mark.answers else mark.name,
        **looks[mark.style] | edge,
    )


def put_word(axes: "Axes", mark: Word) -> None:
    """Beside its place, as far off as a dot is wide, or a ring; lines stop short of it."""
    from matplotlib.patheffects import withStroke

    dx, dy, across, up = {
        "left": (-1, 0, "right", "center"),
        "right": (1, 0, "left", "center"),
        "above": (0, 1, "center", "bottom"),
        "below": (0, -1, "center", "top"),
        "middle": (0, 0, "center", "center"),
    }[mark.side]
    off = 7 if mark.strong else 4
    axes.annotate(
        plain(mark.text), (mark.x, mark.y), (off * dx, off * dy), textcoords="offset points", ha=across, va=up, fontsize=7,
        color=INK, fontweight="bold" if mark.strong else "normal", annotation_clip=False,
        path_effects=[withStroke(linewidth=1.5, foreground=PAPER)],
    )  # fmt: skip


def put_cells(axes: "Axes", cells: Cells) -> None:
    """Squares; marked ones in bold where they hold words, framed where not."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgba
    from matplotlib.patches import Rectangle

    shades = cells.shades
    two = LinearSegmentedColormap.from_list("two", [colour_of("second"), PAPER, colour_of("first")])
    colours = two.with_extremes(bad=to_rgba(colour_of(NONE[0]), NONE[1]))
    axes.imshow(shades, cmap=colours, vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
    for row, texts in enumerate(cells.texts):
        for column, text in enumerate(texts):
            strong = abs(shades[row, column]) > 0.6
            weight = "bold" if (row, column) in cells.marked else "normal"
            colour = PAPER if strong else INK
            axes.text(column, row, plain(text), ha="center", va="center", fontsize=7, color=colour, fontweight=weight)
    for row, column in cells.marked if not len(cells.texts) else ():
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=INK, linewidth=0.9))


def scale(axes: "Axes", cells: Cells, height: float) -> None:
    """Which colour is how much, on the right of a map: both ends, a number between them, what they measure."""
    slim = ROW * height / 0.16  # inches
    bar = axes.figure.colorbar(axes.images[-1], ax=axes, fraction=0.05, pad=0.02, aspect=slim, shrink=0.92)
    shades, words = zip(*cells.scale, strict=True)
    bar.ax.set_ylim(shades[0], shades[-1])
    bar.set_ticks(shades, labels=words)
    bar.ax.tick_params(labelsize=7, length=0, pad=2)
    bar.outline.set_visible(False)
    bar.set_label(plain(cells.name), fontsize=7, color=MUTED)


def plain(text: str) -> str:
    """A dollar sign is a dollar sign, not the start of a formula."""
    return text.replace("$", r"\$")


def fitting(panel: Panel) -> int:
    """How many names find room below a panel."""
    longest = max((len(panel.x.names[at]) for at in thinned(panel.x, len(panel.x.names) or 1)), default=0)
    return max(2, 66 * panel.columns // (longest + 2))


def counted(panel: Panel, axis: Axis) -> bool:
    """Does an axis count things? Then a tick between two of them says nothing."""
    direction = "x" if axis is panel.x else "y"
    lines = [np.asarray(getattr(mark, direction), dtype=float) for mark in panel.marks if isinstance(mark, Line)]
    return bool(lines) and all((line == np.round(line)).all() for line in lines if np.isfinite(line).all())


def dress(axes: "Axes", panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator

    keyed = not panel.cells and len(panel.key) > 1
    rows = key(axes, panel) if keyed else 0
    axes.set_title(panel.title, loc="left", fontsize=9, color=INK, pad=6 + 11 * rows)
    for axis, which, set_scale, limits in (
        (panel.x, axes.xaxis, axes.set_xscale, axes.set_xlim),
        (panel.y, axes.yaxis, axes.set_yscale, axes.set_ylim),
    ):
        if axis.log:
            set_scale("log")
        elif not panel.cells:
            low, high = panel.span("x" if axis is panel.x else "y")
            air = 0.02 * (high - low) if axis.names else 0.0
            limits(low - air, high + air)
        label(which, axis, 16 if axis is panel.y else fitting(panel))
        if not (axis.names or axis.log or axis.bare) and counted(panel, axis):
            which.set_major_locator(MaxNLocator(integer=True))
    if panel.equal:
        axes.set_aspect("equal", adjustable="box")
    axes.spines[["left", "bottom"]].set_visible(not panel.y.bare)


def key(axes: "Axes", panel: Panel) -> int:
    """The key between title and axes, where it covers nothing; gives the number of its rows."""
    widest, room = max(map(len, panel.key)) + 6, 74 * panel.columns
    columns = max(1, min(len(panel.key), room // widest))
    look: dict[str, Any] = {"handlelength": 1.6, "columnspacing": 1.0, "borderaxespad": 0.2, "borderpad": 0.0}
    handles = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    axes.legend(
        handles.values(),
        handles,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=columns,
        frameon=False,
        fontsize=7,
        **look,
    )
    return -(-len(handles) // columns)


def label(which: object, axis: Axis, most: int) -> None:
    which.set_label_text(axis.label, color=MUTED)  # type: ignore[attr-defined]
    if axis.bare:
        which.set_ticks([])  # type: ignore[attr-defined]
    elif axis.names:
        at = thinned(axis, most)
        which.set_ticks(at, [plain(axis.names[i]) for i in at])  # type: ignore[attr-defined]
