"""The picture of what projections do to the geometry."""

import numpy as np
import pytest

from rheoscope.report.plot.distortion import over_depth
from tests.report.plot.cases import cells, found, lines, titled


def test_distortion_shows_medians_beside_random_projections() -> None:
    dataset = found("distortion")
    curves = lines(titled("distortion", "Distances kept (RSA)"))
    assert curves["key"].y == pytest.approx(dataset.rsa.sel(image="key").median("head").values)
    assert curves["random projections"].y == pytest.approx(dataset.rsa_null.sel(image="query").values)
    content = cells(titled("distortion", "Distances kept as content (RSA)"))
    assert np.array_equal(content.values, dataset.rsa.sel(image="content").values)
    other = dataset.rsa_null.copy(deep=True)
    other.loc[{"image": "content"}] += 0.1
    apart = dataset.assign(rsa_null=other.assign_attrs(dataset.rsa_null.attrs))
    panel = over_depth(apart, "rsa", "t")
    assert {"query, random", "key, random", "content, random"} <= set(lines(panel))
