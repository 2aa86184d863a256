"""The style of all figures: colours, CSS and matplotlib parameters."""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, MUTED, ACCENT, PAPER = "#1d2433", "#8a93a6", "#e4572e", "#ffffff"
FIELD_COLOURS = ["#f7f8fb", "#dfe6f2", "#b9c9e4", "#86a3cf", "#4f78b3", "#27508f"]

DRAWING_CSS = """
figure { margin: 0; min-width: 0; }
.scroll { overflow-x: auto; }
.panels { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 1.8rem 1.6rem; align-items: start; grid-auto-flow: dense; }
.tall { grid-row: span 2; }
.of2 { grid-column: span 2; } .of3 { grid-column: 1 / -1; }
@media (max-width: 60rem) { .panels { grid-template-columns: repeat(2, minmax(0, 1fr)); } }
@media (max-width: 42rem) { .panels { grid-template-columns: minmax(0, 1fr); } .of2 { grid-column: auto; } }
.caption + .key { margin: -.4rem 0 1.2rem; font-size: .85rem; }
.key { display: flex; flex-wrap: wrap; gap: 0 1rem; list-style: none; margin: 0; padding: 0; font-size: .78rem; color: var(--muted); }
.key i { display: inline-block; width: 1.1rem; height: 0; border-top: 2.5px solid var(--c); margin-right: .4rem; vertical-align: middle; }
.key i.dashed { border-top-style: dashed; }
.key i.dots { width: .55rem; height: .55rem; border: 0; border-radius: 50%; background: var(--c); }
.scale { display: flex; align-items: flex-start; gap: .9rem; margin-bottom: .2rem; color: var(--muted);
  font-size: .78rem; line-height: 1.25; }
.scale i { position: relative; flex: 0 1 11rem; height: .55rem; margin: .2rem 0 1.1rem; border: 1px solid var(--line); font-style: normal; }
.scale b { position: absolute; top: .65rem; transform: translateX(-50%); font-weight: 400; white-space: nowrap; }
svg { display: block; width: 100%; height: auto; font: 11px system-ui, sans-serif; }
svg text { fill: var(--muted); } svg text.axis { fill: var(--muted); } svg .cell text, svg text.word { fill: var(--ink); }
svg .cell text.on { fill: #fff; }
svg circle.on { stroke: var(--paper); stroke-width: 1.2; pointer-events: none; } svg .cell rect { stroke: var(--line); stroke-width: .5; }
svg .cell rect.marked { stroke: var(--ink); stroke-width: 2; } svg .cell:hover rect { stroke: var(--ink); stroke-width: 1.5; }
svg .grid { stroke: var(--line); } svg .hit { fill: transparent; } svg .hit:hover { fill: var(--muted); fill-opacity: .16; }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; } svg .line.null { stroke-dasharray: 5 4; stroke-width: 1.6; }
svg .path { fill: none; stroke-width: 1.1; stroke-opacity: .65; stroke-linejoin: round; }
svg .dots { fill: none; stroke-linecap: round; }
svg .hair { fill: none; stroke-width: .8; stroke-opacity: .4; pointer-events: none; }
svg .ring { fill: none; stroke-width: 2; pointer-events: none; } svg .star { stroke: var(--paper); stroke-width: 1; }
svg text.word { pointer-events: none; paint-order: stroke; stroke: var(--paper); stroke-width: 2.5; stroke-linejoin: round; }
svg text.strong { font-weight: 700; }
svg .path:hover { stroke-width: 3; stroke-opacity: 1; } svg .shape:hover { fill-opacity: .85; }
"""
"""The CSS of drawings, for a page that defines --ink, --muted, --line and --paper."""
LIGHT_COLOURS = {"ink": "#1d2433", "muted": "#5d6678", "line": "#dde2ec", "paper": "#ffffff"}
DARK_COLOURS = {"ink": "#e8ecf4", "muted": "#9aa5ba", "line": "#2c3447", "paper": "#12161f"}

RC_PARAMS: Any = {
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
}


def new_figure(width: float, height: float) -> "Figure":
    """A figure without a window and without global state."""
    from matplotlib.figure import Figure

    with figure_style():
        return Figure(figsize=(width, height), layout="constrained")


def figure_style() -> AbstractContextManager[None]:
    """A context in which matplotlib uses this style."""
    import matplotlib as mpl

    return mpl.rc_context(RC_PARAMS)
