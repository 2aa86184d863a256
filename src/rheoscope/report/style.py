"""One look for every figure: quiet axes, one ink, one accent."""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, MUTED, ACCENT, PAPER = "#1d2433", "#8a93a6", "#e4572e", "#ffffff"
FIELD = ["#f7f8fb", "#dfe6f2", "#b9c9e4", "#86a3cf", "#4f78b3", "#27508f"]

RC: Any = {
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
    """A figure that belongs to no window and to no global state."""
    from matplotlib.figure import Figure

    with styled():
        return Figure(figsize=(width, height), layout="constrained")


def styled() -> AbstractContextManager[None]:
    """Inside, everything is drawn in this look."""
    import matplotlib as mpl

    return mpl.rc_context(RC)
