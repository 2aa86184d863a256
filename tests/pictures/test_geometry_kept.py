"""The picture of what stays of the geometry."""

import numpy as np

import rheoscope as rs
from rheoscope.report.draw.inline import panel_svg
from tests.pictures.cases import drawn, found
from tests.report.parts import Parts


def test_lines_on_paper_and_on_the_page_hold_the_numbers() -> None:
    panel = drawn("geometry_kept").panels[0]
    rsa = found("geometry_kept").rsa.sel(reference="embed").values
    line = next(one for one in rs.plot(found("geometry_kept")).axes[0].lines if one.get_label() == "to the embedding")
    assert np.allclose(line.get_ydata(), rsa)
    tips = Parts(panel_svg(panel)).texts["title"]
    assert len(tips) == len(rsa)
    assert f"to the embedding: {rsa[1]:.3g}" in tips[1]
    assert tips[1].startswith("L0\n")
