"""Tests of the picture of `agreement`, for one text and for means over several texts."""

import numpy as np

import rheoscope as rs
from rheoscope.report.draw_result import picture_of
from tests.pictures.cases import TEXT, cells, check_all_renderers, example_picture, example_result, model


def test_significant_heads_are_framed() -> None:
    dataset = example_result("agreement")
    significant_heads = {(int(a), int(b)) for a, b in np.argwhere(dataset.q_value.values <= 0.05)}
    assert cells(example_picture("agreement").panels[0]).marked == significant_heads


def test_the_tips_of_means_over_texts_have_their_intervals() -> None:
    traces = [model().trace(text) for text in (TEXT, "In winter the river is cold and the birds fly south.")] * 2
    mean = rs.over_texts(rs.agreement, traces, draws=2, splits=2)
    picture = picture_of(mean)
    check_all_renderers(picture)
    assert picture.title == "Does attention read similarity? Means over 4 texts"
    agreement, z = (cells(panel) for panel in picture.panels[:2])
    assert np.array_equal(z.values, mean.agreement_z.values)
    low, high = (f"{float(mean[f'agreement_{end}'][1, 2]):.3g}" for end in ("low", "high"))
    assert agreement.tips[1][2].endswith(f"from {low}, to {high}")
    few = rs.over_texts(rs.agreement, traces[:2], draws=2, splits=2)
    assert "nan" not in cells(picture_of(few).panels[0]).tips[1][2]
