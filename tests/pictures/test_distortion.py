"""Tests of the picture of `distortion`."""

import numpy as np
import pytest

from rheoscope.covers.distortion.picture import depth_panel
from tests.pictures.cases import cells, example_result, lines, panel_with_title


def test_curves_show_medians_random_heads_and_random_projections() -> None:
    dataset = example_result("distortion")
    curves = lines(panel_with_title("distortion", "Preserved distances (RSA)"))
    assert curves["key"].y == pytest.approx(dataset.rsa.sel(image="key").median("head").values)
    assert curves["random projections"].y == pytest.approx(dataset.rsa_projection.sel(image="query").values)
    assert curves["key, random heads"].y == pytest.approx(dataset.rsa_null.sel(image="key").median("head").values)
    content = cells(panel_with_title("distortion", "Distances preserved by content (RSA)"))
    assert np.array_equal(content.values, dataset.rsa.sel(image="content").values)
    assert "random heads" in lines(depth_panel(dataset, "collapse", "t"))  # images of equal rank share a null
