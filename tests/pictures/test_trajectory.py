"""The picture of how tokens move."""

import numpy as np
import pytest

from rheoscope.flow.trajectory.picture import speed_panel, step_source
from rheoscope.picture.label_placement import LabelRequest
from rheoscope.picture.picture import Label, Line
from rheoscope.report.draw.inline import panel_svg
from rheoscope.space.step import Step
from tests.picture.label_placement_by_hand import box
from tests.pictures.cases import drawn, found, lines
from tests.report.parts import Parts


def test_the_map_has_a_path_and_an_end_for_every_token() -> None:
    panel, dataset = drawn("trajectory").panels[0], found("trajectory")
    paths = [mark for mark in panel.marks if isinstance(mark, Line) and mark.style == "solid"]
    assert len(paths) == dataset.sizes["token"]
    assert np.allclose(paths[2].x, dataset.plane_position[:, 2, 0])
    assert paths[2].tip.startswith("token 2 ·ke: path ")
    assert Parts(panel_svg(panel)).count("circle") == len(paths)


def test_speed_is_told_by_maker() -> None:
    dataset = found("trajectory")
    panel = speed_panel(dataset)
    expected = dataset.relative_speed.sel(step="L2.resid_mid").median()
    assert lines(panel)["attention"].y[2] == pytest.approx(float(expected))
    assert list(panel.legend) == ["attention", "MLP"]
    post = [Step.parse(f"L0.{name}") for name in ("attn_sum", "resid_mid", "mlp_sum", "resid_post")]
    assert [step_source(step, post) for step in post] == ["attention", "norm", "MLP", "norm"]
    assert step_source(Step.parse("L0.resid_cross"), []) == "cross attention"


def test_paths_have_the_names_of_their_tokens_where_there_is_room() -> None:
    """First and last token stand out; no name lies on another."""
    panel, dataset = drawn("trajectory").panels[0], found("trajectory")
    names = [mark for mark in panel.marks if isinstance(mark, Label)]
    assert [(word.text, word.strong) for word in names[:3]][:2] == [("<|endoftext|>", True), (".", True)]
    assert 8 < len(names) <= dataset.sizes["token"]
    ends = {(float(x), float(y)) for x, y in dataset.plane_position.values[-1]}
    assert all((word.x, word.y) in ends for word in names)
    boxes = [
        box(LabelRequest(word.x, word.y, word.text, word.strong), word.side, (panel.x.high - panel.x.low) / 2)
        for word in names
    ]
    for at, one in enumerate(boxes):
        assert not any((one[:2] < other[2:]).all() and (other[:2] < one[2:]).all() for other in boxes[at + 1 :])
