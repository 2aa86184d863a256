"""Tests of the picture of `fixed_point`."""

import numpy as np
import pytest

from tests.pictures.cases import cells, example_result, lines, panel_with_title


def test_panels_show_the_chosen_layers() -> None:
    dataset = example_result("fixed_point")
    curves = lines(panel_with_title("fixed_point", "Jacobian"))
    assert curves["spectral radius"].y == pytest.approx(dataset.jacobian_radius.values)
    assert panel_with_title("fixed_point", "Jacobian").x.names == ("L0", "L2", "L5")
    angles = lines(panel_with_title("fixed_point", "Rotation of directions"))
    assert angles["permuted displacements"].y == pytest.approx(dataset.rotation_angle_null.values)
    table = cells(panel_with_title("fixed_point", "Residual of every token"))
    assert table.values == pytest.approx(np.log10(dataset.residual_token.values))
    assert table.tips[1][2].startswith(f"L2, token 2 {dataset.token_text.values[2].replace(' ', '·')}: ")
