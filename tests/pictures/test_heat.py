"""Tests of the picture of `heat`."""

import numpy as np

from tests.pictures.cases import cells, example_result, lines, panel_with_title


def test_curves_are_medians_over_heads_and_maps_show_every_head() -> None:
    dataset = example_result("heat")
    curves = lines(panel_with_title("heat", "Distance from the heat kernel"))
    assert np.allclose(curves["heads"].y, dataset.heat_distance.median(("layer", "head")))
    assert np.allclose(curves["weights permuted"].y, dataset.heat_distance_null.median(("layer", "head")))
    first_map = cells(panel_with_title("heat", "Distance from the heat kernel at time 1"))
    assert len(first_map.marked) == int((dataset.q_value.isel(time=0) < 0.05).sum())
    assert np.allclose(cells(panel_with_title("heat", "Spectral gap")).values, dataset.spectral_gap)
