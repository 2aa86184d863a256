"""The picture of what later layers make of a change."""

import numpy as np

from tests.pictures.cases import found, lines, titled


def test_decay_draws_every_change_and_the_interval_of_the_edit() -> None:
    dataset, left = found("decay"), lines(titled("decay", "Deviation that remains"))
    assert set(left) == {"edit", "isotropic", "exchanged", "edit, low", "edit, high"}
    assert np.allclose(left["exchanged"].y, dataset.deviation_ratio.sel(change="exchanged"))
    assert titled("decay", "Same direction").x.names[:3] == ("L3 mid", "L3", "L4 mid")
