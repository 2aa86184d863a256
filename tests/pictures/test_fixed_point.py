"""The picture of fixed points."""

import numpy as np
import pytest

from tests.pictures.cases import cells, found, lines, titled


def test_panels_show_the_chosen_layers() -> None:
    dataset = found("fixed_point")
    curves = lines(titled("fixed_point", "Jacobian"))
    assert curves["spectral radius"].y == pytest.approx(dataset.jacobian_radius.values)
    assert titled("fixed_point", "Jacobian").x.names == ("L0", "L2", "L5")
    angles = lines(titled("fixed_point", "Rotation of directions"))
    assert angles["permuted displacements"].y == pytest.approx(dataset.rotation_angle_null.values)
    table = cells(titled("fixed_point", "Residual of every token"))
    assert table.values == pytest.approx(np.log10(dataset.residual_token.values))
    assert table.tips[1][2].startswith(f"L2, token 2 {dataset.token_text.values[2].replace(' ', '·')}: ")
