"""The notebook card of a Trace: its tokens and a thumbnail of their paths."""

from html import escape

import torch

from rheoscope.flow.projection import fit_plane, project_on_plane
from rheoscope.messages.message import Message
from rheoscope.picture.picture import SERIES_COLOURS, Axis, Line, Panel
from rheoscope.picture.token_labels import display_token
from rheoscope.report.draw.inline import panel_svg
from rheoscope.report.html_text import html_text
from rheoscope.space.trace import Trace

MAX_TOKENS = 120
"""The number of tokens on a card."""
WIDTH_PIXELS = 300
"""The width of the thumbnail."""
TOKEN_STYLE = (
    "display:inline-block; border:1px solid #8a93a655; border-radius:3px; padding:0 4px; margin:1px; white-space:pre"
)


def thumbnail(trace: Trace) -> str:
    """HTML with the first tokens and their paths, in the plane of largest variance."""
    chips = "".join(
        f'<code style="{TOKEN_STYLE}">{escape(display_token(token))}</code>' for token in trace.tokens[:MAX_TOKENS]
    )
    more_note = html_text(Message(" … and {n} more", n=len(trace) - MAX_TOKENS)) if len(trace) > MAX_TOKENS else ""
    path_plot = path_panel(trace)
    # Attributes instead of a style sheet, which would change the rest of the notebook.
    plot_svg = (
        ""
        if path_plot is None
        else panel_svg(path_plot).replace("<svg", f'<svg width="{WIDTH_PIXELS}" fill="none" stroke-opacity=".5"', 1)
    )
    return f"<div>{chips}{more_note}</div>{plot_svg}"


def path_panel(trace: Trace) -> Panel | None:
    """Paths as thin lines with a dot at the last point of every token; None with fewer than three tokens."""
    tokens = [k for k in trace.valid_mask(min_tokens=0).nonzero()[:, 0].tolist() if k < MAX_TOKENS]
    x = trace.points[:, tokens].to(torch.promote_types(trace.points.dtype, torch.float32))
    if len(tokens) < 3 or not bool(x.isfinite().all()):
        return None
    xy = project_on_plane(x, fit_plane(x, (0, len(x) // 2, len(x) - 1))).cpu().numpy()
    path_lines = [Line("", xy[:, k, 0], xy[:, k, 1], "null", "hair") for k in range(len(tokens))]
    tips = [Message("token {index} {text}", index=k, text=display_token(trace.tokens[k])) for k in tokens]
    dots = Line("", xy[-1, :, 0], xy[-1, :, 1], SERIES_COLOURS[0], "dots", tips=tips)
    bare_axis = Axis(bare=True)
    return Panel(
        Message("Paths of the tokens, from the embedding to the last layer"),
        "",
        (*path_lines, dots),
        bare_axis,
        bare_axis,
        equal=True,
    )
