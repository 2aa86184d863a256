"""A picture as one SVG file, light or dark, for a README or slides."""

import re
from collections.abc import Mapping

from rheoscope.picture.picture import Picture
from rheoscope.report.draw.inline import COLUMN_GAP, COLUMN_WIDTH, PanelFrame, panel_svg
from rheoscope.report.html_text import html_text
from rheoscope.report.style import DRAWING_CSS, LIGHT_COLOURS

TIP_PATTERN = re.compile(r"<title>.*?</title>", re.S)
"""Tooltips, which an image does not show."""


def picture_svg(picture: Picture, colours: Mapping[str, str] = LIGHT_COLOURS) -> str:
    """All panels of a picture as one self-contained SVG file.

    >>> from rheoscope.picture.picture import Panel
    >>> picture_svg(Picture("", "", (Panel("a", "", ()), Panel("b", "", ())))).count("<g ")
    2
    """
    elements, top = [], 0
    for row in picture.rows():
        left = 0
        for panel in row:
            frame = PanelFrame(panel)
            elements.append(f'<text class="title" x="{left + 2}" y="{top + 16}">{html_text(panel.title)}</text>')
            content = TIP_PATTERN.sub("", panel_svg(panel)).split(">", 1)[1].removesuffix("</svg>")
            elements.append(f'<g transform="translate({left} {top + 20})">{content}</g>')
            left += frame.width + COLUMN_GAP
        top += max(PanelFrame(panel).height for panel in row) + 24
    width = 3 * COLUMN_WIDTH + 2 * COLUMN_GAP
    colour_variables = "".join(f"--{name}: {colour}; " for name, colour in colours.items())
    style = f"svg {{ {colour_variables}}} {DRAWING_CSS} svg text.title {{ fill: var(--ink); font-weight: 600; font-size: 13px; }}"
    label = html_text(picture.title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" role="img" aria-label="{label}">'
        f'<style>{style}</style><rect width="100%" height="100%" fill="{colours["paper"]}"/>{"".join(elements)}</svg>\n'
    )
