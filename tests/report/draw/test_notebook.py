"""Pictures for notebooks: keys stand once."""

from rheoscope.report.draw.notebook import in_notebook
from rheoscope.report.picture import Line, Panel, Picture


def test_keys_in_a_notebook_stand_once_a_panel() -> None:
    two = Line("a", [0, 1], [1, 2]), Line("b", [0, 1], [2, 1], "second"), Line("a", [0, 1], [3, 3])
    drawn = in_notebook(Picture("", "", (Panel("one", "", two), Panel("two", "", two), Panel("alone", "", two[:1]))))
    shown = [(trace.name, trace.legend) for trace in drawn.data if trace.showlegend]
    assert shown == [("a", "legend2"), ("b", "legend2"), ("a", "legend3"), ("b", "legend3")]
    assert drawn.layout.legend2.x < drawn.layout.legend3.x
