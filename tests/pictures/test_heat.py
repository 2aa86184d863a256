"""Tests of the picture of `heat`."""

import numpy as np

from tests.pictures.cases import cells, found, lines, titled


def test_curves_are_medians_over_heads_and_maps_show_every_head() -> None:
    dataset = found("heat")
    curves = lines(titled("heat", "Distance from the heat kernel"))
    assert np.allclose(curves["heads"].y, dataset.heat_distance.median(("layer", "head")))
    assert np.allclose(curves["weights permuted"].y, dataset.heat_distance_null.median(("layer", "head")))
    first_map = cells(titled("heat", "Distance from the heat kernel at time 1"))
    assert len(first_map.marked) == int((dataset.q_value.isel(time=0) < 0.05).sum())
    assert np.allclose(cells(titled("heat", "Spectral gap")).values, dataset.spectral_gap)
