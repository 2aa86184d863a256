"""A panel as a strip without axes, for a row of a forest plot or of a list."""

from rheoscope.picture.picture import Panel
from rheoscope.report.draw.inline import PanelFrame, mark_elements
from rheoscope.report.html_text import html_text

STRIP_WIDTH, STRIP_HEIGHT = 360, 26


class StripFrame(PanelFrame):
    """The coordinates of a panel without margins. Its axes have fixed ranges."""

    def x(self, value: float) -> float:
        return self.fraction(value, self.x_range, self.panel.x) * STRIP_WIDTH

    def y(self, value: float) -> float:
        return (1 - self.fraction(value, self.y_range, self.panel.y)) * STRIP_HEIGHT


def strip_svg(panel: Panel) -> str:
    """The marks of a panel, without axes.

    >>> from rheoscope.picture.picture import Line
    >>> strip_svg(Panel("an interval", "", (Line("", [0.0, 1.0], [0.0, 0.0]),))).count("<polyline")
    1
    """
    marks = "".join(mark_elements(StripFrame(panel)))
    label = html_text(panel.title)
    return f'<svg viewBox="0 0 {STRIP_WIDTH} {STRIP_HEIGHT}" role="img" aria-label="{label}">{marks}</svg>'
