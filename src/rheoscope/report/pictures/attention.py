"""A figure of all mechanisms on one small cloud: the score field of one query, and its weights."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from matplotlib.colors import LinearSegmentedColormap
from torch import Tensor

from rheoscope.attention.survey import SurveyRow
from rheoscope.messages.catalogue import render
from rheoscope.messages.message import Message
from rheoscope.report.style import ACCENT, FIELD_COLOURS, INK, MUTED, PAPER, figure_style, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_COLUMNS = 6
GRID_POINTS = 90


def figure(rows: list[SurveyRow], points: Float[Tensor, "n 2"], query_index: int = 0) -> "Figure":
    """One panel per mechanism. Shade: score of a key at that point. Area: weight of a token. Ring: the query."""
    with figure_style():
        n_rows = -(-len(rows) // PANEL_COLUMNS)
        sheet = new_figure(2.35 * PANEL_COLUMNS, 2.6 * n_rows + 0.5)
        axes = sheet.subplots(n_rows, PANEL_COLUMNS, squeeze=False).flatten()
        for axis, row in zip(axes, rows, strict=False):
            draw_mechanism(axis, row, points, query_index)
        for axis in axes[len(rows) :]:
            axis.set_axis_off()
        sheet.suptitle(
            render(
                Message(
                    "Every mechanism on one cloud   ·   ring: query   ·   shade: score of a key at that point   ·   area: weight   ·   "
                    "open: negative weight"
                )
            ),
            fontsize=10,
            x=0.01,
            ha="left",
        )
    return sheet


def draw_mechanism(axis: "Axes", row: SurveyRow, points: Float[Tensor, "n 2"], query_index: int) -> None:
    limit = float(points.abs().max()) * 1.25
    xs = torch.linspace(-limit, limit, GRID_POINTS, dtype=points.dtype)
    axis.contourf(
        xs,
        xs,
        score_field(row, points[query_index], xs),
        levels=12,
        cmap=LinearSegmentedColormap.from_list("field", FIELD_COLOURS),
    )
    weights = row.weights[query_index]
    colours = [ACCENT if weight >= 0 else PAPER for weight in weights]
    areas = 4 + 420 * weights.abs() / max(1.0, float(weights.abs().sum()))
    axis.scatter(points[:, 0], points[:, 1], s=areas.tolist(), c=colours, edgecolors=INK, linewidths=0.6, zorder=3)
    axis.scatter(
        points[query_index, 0],
        points[query_index, 1],
        s=110,
        facecolors="none",
        edgecolors=INK,
        linewidths=1.4,
        zorder=4,
    )
    axis.set(xticks=[], yticks=[], aspect="equal", xlim=(-limit, limit), ylim=(-limit, limit))
    axis.spines[:].set_visible(False)
    axis.set_title(row.entry.name, fontsize=9, loc="left", color=INK, pad=14, fontweight="bold")
    axis.text(0, 1.02, row.entry.formula, transform=axis.transAxes, fontsize=7.5, color=MUTED, va="bottom")


def score_field(row: SurveyRow, q: Float[Tensor, " 2"], xs: Float[Tensor, " grid"]) -> Float[Tensor, "grid grid"]:
    """The score of a key at each point of the plane, clamped from below where a kernel is zero."""
    y, x = torch.meshgrid(xs, xs, indexing="ij")
    keys = torch.stack([x, y], -1).reshape(1, 1, -1, 2)
    scores = row.mechanism.score(q.reshape(1, 1, 1, 2), keys).reshape(len(xs), len(xs))
    floor = scores[scores.isfinite()].quantile(0.02)
    return scores.clamp(min=float(floor))
