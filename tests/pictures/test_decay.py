"""Tests of the picture of `decay`."""

import numpy as np

from tests.pictures.cases import example_result, lines, panel_with_title


def test_every_change_and_the_interval_of_the_edit_have_a_line() -> None:
    dataset, curves = example_result("decay"), lines(panel_with_title("decay", "Deviation relative to the first step"))
    assert set(curves) == {"edit", "isotropic noise", "exchanged noise", "edit, lower end", "edit, upper end"}
    assert np.allclose(curves["exchanged noise"].y, dataset.deviation_ratio.sel(change="exchanged"))
    assert panel_with_title("decay", "Cosine with the first deviation").x.names[:3] == ("L3 mid", "L3", "L4 mid")
