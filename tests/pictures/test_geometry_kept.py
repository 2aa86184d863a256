"""Tests of the geometry_kept plot."""

import numpy as np

import rheoscope as rs
from rheoscope.report.draw.inline import panel_svg
from tests.pictures.cases import example_picture, example_result
from tests.report.parts import Parts


def test_lines_in_matplotlib_and_svg_have_the_values() -> None:
    panel = example_picture("geometry_kept").panels[0]
    rsa = example_result("geometry_kept").rsa.sel(reference="embed").values
    line = next(
        candidate
        for candidate in rs.plot(example_result("geometry_kept")).axes[0].lines
        if candidate.get_label() == "embedding"
    )
    assert np.allclose(line.get_ydata(), rsa)
    tips = Parts(panel_svg(panel)).texts["title"]
    assert len(tips) == len(rsa)
    assert f"embedding: {rsa[1]:.3g}" in tips[1]
    assert tips[1].startswith("L0\n")
