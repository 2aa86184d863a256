"""The picture of heat on the graphs of heads."""

import numpy as np

from tests.pictures.cases import cells, found, lines, titled


def test_curves_are_medians_beside_their_null_and_maps_are_heads() -> None:
    dataset = found("heat")
    shown = lines(titled("heat", "Powers of attention from heat"))
    assert np.allclose(shown["heads"].y, dataset.heat_distance.median(("layer", "head")))
    assert np.allclose(shown["dealt anew"].y, dataset.heat_distance_null.median(("layer", "head")))
    first = cells(titled("heat", "Distance from heat at time 1"))
    assert len(first.marked) == int((dataset.q_value.isel(time=0) < 0.05).sum())
    assert np.allclose(cells(titled("heat", "How fast heat settles")).values, dataset.spectral_gap)
