"""Tests of the picture of `stack`."""

import numpy as np
import pytest

from tests.pictures.cases import cells, example_result, lines, panel_with_title


def test_curves_are_means_over_layers_and_tips_name_the_added_head() -> None:
    dataset = example_result("stack")
    curves = lines(panel_with_title("stack", "Distances recovered (RSA)"))
    assert curves["greedy order"].y == pytest.approx(dataset.recovered.mean("layer").values)
    assert curves["random order"].y == pytest.approx(dataset.recovered_random.mean("layer").values)
    assert curves["random projections"].style == curves["random heads"].style == "dashed"
    assert curves["orthonormal"].y == pytest.approx(dataset.recovered_orthonormal.mean("layer").values)
    assert lines(panel_with_title("stack", "Share of the dimensions that heads read"))["joint rank"].y == pytest.approx(
        dataset.joint_rank_share.mean("layer").values
    )
    tips = cells(panel_with_title("stack", "Every layer, heads in greedy order")).tips
    assert f"adds head {int(dataset.head_order[3, 1])} (random heads" in tips[3][1]
    overlaps = [dataset.overlap.values[2][a][b] for a in range(4) for b in range(4) if a != b]
    assert lines(panel_with_title("stack", "Overlap of heads"))["two heads of the layer"].y[2] == pytest.approx(
        np.mean(overlaps)
    )
