"""Tests of the figure of the weights of every mechanism."""

import torch

from rheoscope.attention.survey import example_cloud, survey_mechanisms
from rheoscope.report.pictures.attention import figure, score_field


def test_one_panel_for_each_mechanism() -> None:
    points = example_cloud()
    rows = survey_mechanisms(points, tokens=64, width=8)[:8]
    sheet = figure(rows, points)
    titles = [axis.get_title("left") for axis in sheet.axes]
    assert [title for title in titles if title] == [row.entry.name for row in rows]


def test_the_field_is_the_score_of_a_key_placed_there() -> None:
    points = example_cloud()
    metric = next(row for row in survey_mechanisms(points, tokens=64, width=8) if row.entry.name == "metric")
    xs = torch.linspace(-2, 2, 5, dtype=torch.float64)
    seen = score_field(metric, torch.tensor([1.0, 0.0], dtype=torch.float64), xs)
    assert seen.argmax() == 2 * 5 + 3
    assert seen[2, 3] == 0
