"""The picture of what projections do to the geometry."""

import numpy as np
import pytest

from rheoscope.covers.distortion.picture import depth_panel
from tests.pictures.cases import cells, found, lines, titled


def test_distortion_shows_medians_beside_random_heads_and_projections() -> None:
    dataset = found("distortion")
    curves = lines(titled("distortion", "Distances kept (RSA)"))
    assert curves["key"].y == pytest.approx(dataset.rsa.sel(image="key").median("head").values)
    assert curves["random projections"].y == pytest.approx(dataset.rsa_projection.sel(image="query").values)
    assert curves["key, random heads"].y == pytest.approx(dataset.rsa_null.sel(image="key").median("head").values)
    content = cells(titled("distortion", "Distances kept as content (RSA)"))
    assert np.array_equal(content.values, dataset.rsa.sel(image="content").values)
    assert "random heads" in lines(depth_panel(dataset, "collapse", "t"))  # one null for images of one rank
