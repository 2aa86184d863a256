"""The picture of what heads see together."""

import numpy as np
import pytest

from tests.pictures.cases import cells, found, lines, titled


def test_stack_shows_means_over_layers_and_which_head_is_added() -> None:
    dataset = found("stack")
    curves = lines(titled("stack", "Distances recovered (RSA)"))
    assert curves["best first"].y == pytest.approx(dataset.recovered.mean("layer").values)
    assert curves["random order"].y == pytest.approx(dataset.recovered_random.mean("layer").values)
    assert curves["random projections"].style == curves["random heads"].style == "dashed"
    assert curves["orthonormal reads"].y == pytest.approx(dataset.recovered_orthonormal.mean("layer").values)
    assert lines(titled("stack", "How much of E is read at all"))["span"].y == pytest.approx(
        dataset.joint_rank_share.mean("layer").values
    )
    tips = cells(titled("stack", "Every layer, best heads first")).tips
    assert f"adds head {int(dataset.head_order[3, 1])};" in tips[3][1]
    off = [dataset.overlap.values[2][a][b] for a in range(4) for b in range(4) if a != b]
    assert lines(titled("stack", "Do heads read the same?"))["two heads of the layer"].y[2] == pytest.approx(
        np.mean(off)
    )
