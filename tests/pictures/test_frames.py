"""Tests of the frames plot: dots, labels, ring and star, the common range, and cluster colours."""

import numpy as np

from rheoscope.flow.frames.picture import (
    CLUSTER_COLOURS,
    MAX_LABELS,
    PREDICTION_COLOUR,
    colour_indices,
    frame_panel,
    picture,
    shared_view,
)
from rheoscope.picture.picture import Label, Line, Panel
from rheoscope.picture.token_labels import display_token
from tests.pictures.cases import check_all_renderers, example_picture, example_result, model


def of_style(panel: Panel, style: str) -> list[Line]:
    return [mark for mark in panel.marks if isinstance(mark, Line) and mark.style == style]


def test_every_token_has_a_dot_with_its_text_on_hover_in_every_frame() -> None:
    dataset = example_result("frames")
    for index, panel in enumerate(example_picture("frames").panels):
        dots = of_style(panel, "dots")
        dot_positions = sorted((float(x), float(y)) for line in dots for x, y in zip(line.x, line.y, strict=True))
        assert dot_positions == sorted(map(tuple, dataset.plane_position.values[index].astype(float).tolist()))
        tip_positions = sorted(int(tip.split()[1]) for line in dots for tip in line.tips)
        assert tip_positions == dataset.token.values.tolist()


def test_ring_marks_the_predicting_token_and_star_the_prediction() -> None:
    dataset, target = example_result("frames"), model().token_strings([example_result("frames").attrs["target"]])[0]
    for index, panel in enumerate(example_picture("frames", token_strings=model().token_strings).panels):
        (ring,), (star,) = of_style(panel, "rings"), of_style(panel, "stars")
        assert np.allclose([ring.x[0], ring.y[0]], dataset.plane_position.values[index, -1])
        assert np.allclose([star.x[0], star.y[0]], dataset.prediction.values)
        strong = [mark.text for mark in panel.marks if isinstance(mark, Label) and mark.strong]
        assert strong == [display_token(str(dataset.token_text.values[-1])), f"next: {display_token(target)}"]
        assert f"{100 * float(dataset.explained_variance[index]):.0f} % of the variance" in panel.title
        assert f"{float(dataset.toward_prediction[index, -1]):.2f}" in panel.title


def test_all_frames_share_one_range_that_contains_every_dot() -> None:
    dataset, panels = example_result("frames"), example_picture("frames").panels
    assert len(panels) == dataset.sizes["frame"]
    assert len({(panel.x, panel.y, panel.height, panel.equal) for panel in panels}) == 1
    (left, right), (low, high) = shared_view(dataset)
    x, y = dataset.plane_position.values.reshape(-1, 2).T
    assert left < x.min() < x.max() < right
    assert low < y.min() < y.max() < high
    assert all(sum(isinstance(mark, Label) for mark in panel.marks) <= MAX_LABELS for panel in panels)


def test_thin_lines_lead_from_the_previous_frame() -> None:
    dataset, panels = example_result("frames"), example_picture("frames").panels
    assert [len(of_style(panel, "hair")) for panel in panels] == [1, 2, 2, 2, 2, 2]
    hair = of_style(panels[2], "hair")[1]
    segments = np.stack([hair.x, hair.y], 1).reshape(-1, 3, 2)
    assert np.allclose(segments[:, :2].swapaxes(0, 1), dataset.plane_position.values[1:3])


def test_a_cluster_keeps_its_own_colour() -> None:
    labels = np.repeat(np.arange(0, 40, 2), 2)
    colours = colour_indices(np.stack([labels, labels]))
    assert set(np.unique(colours)) == {-1, *range(len(CLUSTER_COLOURS))}
    assert np.array_equal(colours[0], colours[1])
    assert PREDICTION_COLOUR not in CLUSTER_COLOURS
    assert colour_indices(np.arange(12).reshape(2, 6) % 6).max() == -1


def test_plot_without_prediction_or_predicting_token_is_drawn() -> None:
    without_prediction = example_result("frames").drop_vars(["prediction", "toward_prediction"])
    assert "star" not in picture(without_prediction).caption
    check_all_renderers(picture(without_prediction))
    without_predictor = example_result("frames").isel(token=slice(0, -1))
    panel = frame_panel(
        without_predictor, 0, colour_indices(without_predictor.label.values), shared_view(without_predictor), "x"
    )
    assert of_style(panel, "rings") == []
    assert "cosine" not in panel.title
