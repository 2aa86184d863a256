"""A Trace in a notebook: its tokens, and a thumbnail of where they go."""

from html import escape

import torch

from rheoscope.flow.projection import on_plane, plane
from rheoscope.picture.picture import CLUSTERS, Axis, Line, Panel
from rheoscope.picture.token_labels import shown
from rheoscope.report.draw.inline import svg
from rheoscope.space.trace import Trace

MOST = 120
"""Tokens that a card shows."""
WIDE = 300
"""Of the thumbnail, in pixels."""
CHIP = "display:inline-block; border:1px solid #8a93a655; border-radius:3px; padding:0 4px; margin:1px; white-space:pre"


def thumbnail(trace: Trace) -> str:
    """HTML: the first tokens, and their ways through the layers, in the plane along which the clouds spread most."""
    chips = "".join(f'<code style="{CHIP}">{escape(shown(token))}</code>' for token in trace.tokens[:MOST])
    more = f" … and {len(trace) - MOST} more" if len(trace) > MOST else ""
    ways = panel(trace)
    # What a page says by its style sheet is said by attributes: nothing here may change how the notebook looks.
    drawn = "" if ways is None else svg(ways).replace("<svg", f'<svg width="{WIDE}" fill="none" stroke-opacity=".5"', 1)
    return f"<div>{chips}{more}</div>{drawn}"


def panel(trace: Trace) -> Panel | None:
    """Every token a dot where it ends, and a hair along its way; None where there is no plane to see."""
    at = [k for k in trace.ordinary(least=0).nonzero()[:, 0].tolist() if k < MOST]
    x = trace.points[:, at].to(torch.promote_types(trace.points.dtype, torch.float32))
    if len(at) < 3 or not bool(x.isfinite().all()):
        return None
    seen = on_plane(x, plane(x, (0, len(x) // 2, len(x) - 1))).cpu().numpy()
    hairs = [Line("", seen[:, k, 0], seen[:, k, 1], "null", "hair") for k in range(len(at))]
    tips = [f"token {k} {shown(trace.tokens[k])}" for k in at]
    dots = Line("", seen[-1, :, 0], seen[-1, :, 1], CLUSTERS[0], "dots", tips=tips)
    bare = Axis(bare=True)
    return Panel("The tokens, from the embedding to the last layer", "", (*hairs, dots), bare, bare, equal=True)
