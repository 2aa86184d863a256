"""Tests of the trajectory plot."""

import numpy as np
import pytest

from rheoscope.flow.trajectory.picture import speed_panel, step_source
from rheoscope.picture.label_placement import LabelRequest
from rheoscope.picture.picture import Label, Line
from rheoscope.report.draw.inline import panel_svg
from rheoscope.space.step import Step
from tests.picture.reference_label_placement import label_box
from tests.pictures.cases import example_picture, example_result, lines
from tests.report.parts import Parts


def test_map_has_a_path_and_an_end_dot_for_every_token() -> None:
    panel, dataset = example_picture("trajectory").panels[0], example_result("trajectory")
    paths = [mark for mark in panel.marks if isinstance(mark, Line) and mark.style == "solid"]
    assert len(paths) == dataset.sizes["token"]
    assert np.allclose(paths[2].x, dataset.plane_position[:, 2, 0])
    assert paths[2].tip.startswith("token 2 ·ke: path length ")
    assert Parts(panel_svg(panel)).count("circle") == len(paths)


def test_speed_is_split_by_component() -> None:
    dataset = example_result("trajectory")
    panel = speed_panel(dataset)
    expected = dataset.relative_speed.sel(step="L2.resid_mid").median()
    assert lines(panel)["attention"].y[2] == pytest.approx(float(expected))
    assert list(panel.legend) == ["attention", "MLP"]
    post_norm_steps = [Step.parse(f"L0.{name}") for name in ("attn_sum", "resid_mid", "mlp_sum", "resid_post")]
    assert [step_source(step, post_norm_steps) for step in post_norm_steps] == [
        "attention",
        "norm layer",
        "MLP",
        "norm layer",
    ]
    assert step_source(Step.parse("L0.resid_cross"), []) == "cross attention"


def test_labels_are_at_the_ends_of_paths_and_do_not_overlap() -> None:
    """The first and the last token are emphasised. No two labels overlap."""
    panel, dataset = example_picture("trajectory").panels[0], example_result("trajectory")
    labels = [mark for mark in panel.marks if isinstance(mark, Label)]
    assert [(label.text, label.strong) for label in labels[:3]][:2] == [("<|endoftext|>", True), (".", True)]
    assert 8 < len(labels) <= dataset.sizes["token"]
    ends = {(float(x), float(y)) for x, y in dataset.plane_position.values[-1]}
    assert all((label.x, label.y) in ends for label in labels)
    boxes = [
        label_box(
            LabelRequest(label.x, label.y, label.text, label.strong), label.side, (panel.x.high - panel.x.low) / 2
        )
        for label in labels
    ]
    for index, first in enumerate(boxes):
        assert not any(
            (first[:2] < second[2:]).all() and (second[:2] < first[2:]).all() for second in boxes[index + 1 :]
        )
