"""Pictures for notebooks: keys stand once, marks are put in one go."""

import numpy as np
import plotly.graph_objects as go
import pytest

from rheoscope.report.draw.notebook import in_notebook
from rheoscope.report.picture import Axis, Cells, Line, Panel, Picture


def test_keys_in_a_notebook_stand_once_a_panel() -> None:
    two = Line("a", [0, 1], [1, 2]), Line("b", [0, 1], [2, 1], "second"), Line("a", [0, 1], [3, 3])
    drawn = in_notebook(Picture("", "", (Panel("one", "", two), Panel("two", "", two), Panel("alone", "", two[:1]))))
    shown = [(trace.name, trace.legend) for trace in drawn.data if trace.showlegend]
    assert shown == [("a", "legend2"), ("b", "legend2"), ("a", "legend3"), ("b", "legend3")]
    assert drawn.layout.legend2.x < drawn.layout.legend3.x


def test_all_marks_come_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """plotly looks at the whole figure at every call: one by one, a map of paths took seconds."""
    calls: list[int] = []
    add = go.Figure.add_traces
    monkeypatch.setattr(
        go.Figure, "add_traces", lambda self, *given, **more: calls.append(1) or add(self, *given, **more)
    )
    cells = Cells(np.eye(3), marked=frozenset({(0, 1), (2, 2)}), name="share")
    panels = Panel("paths", "", (Line("a", [0, 1], [0, 1]),) * 9), Panel("map", "", (cells,), Axis("head"))
    figure = in_notebook(Picture("", "", panels))
    assert (len(calls), len(figure.data)) == (1, 10)
    assert sorted((s.xref, s.yref, s.x0, s.y0) for s in figure.layout.shapes) == [
        ("x2", "y2", 0.5, -0.5),
        ("x2", "y2", 1.5, 1.5),
    ]
