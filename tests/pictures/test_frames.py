"""The picture of the cloud: everyone is there, the right ones are marked, and all frames are one window."""

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
from tests.pictures.cases import by_three_hands, drawn, found, model


def of_style(panel: Panel, style: str) -> list[Line]:
    return [mark for mark in panel.marks if isinstance(mark, Line) and mark.style == style]


def test_every_token_has_a_dot_in_every_frame_with_its_name_under_the_pointer() -> None:
    dataset = found("frames")
    for at, panel in enumerate(drawn("frames").panels):
        dots = of_style(panel, "dots")
        place = sorted((float(x), float(y)) for line in dots for x, y in zip(line.x, line.y, strict=True))
        assert place == sorted(map(tuple, dataset.plane_position.values[at].astype(float).tolist()))
        told = sorted(int(tip.split()[1]) for line in dots for tip in line.tips)
        assert told == dataset.token.values.tolist()


def test_the_token_that_predicts_is_ringed_and_the_star_is_the_prediction() -> None:
    dataset, target = found("frames"), model().token_strings([found("frames").attrs["target"]])[0]
    for at, panel in enumerate(drawn("frames", token_strings=model().token_strings).panels):
        (ring,), (star,) = of_style(panel, "rings"), of_style(panel, "stars")
        assert np.allclose([ring.x[0], ring.y[0]], dataset.plane_position.values[at, -1])
        assert np.allclose([star.x[0], star.y[0]], dataset.prediction.values)
        strong = [mark.text for mark in panel.marks if isinstance(mark, Label) and mark.strong]
        assert strong == [display_token(str(dataset.token_text.values[-1])), f"next: {display_token(target)}"]
        assert f"{float(dataset.explained_variance[at]):.0%} seen" in panel.title
        assert f"{float(dataset.toward_prediction[at, -1]):.2f}" in panel.title


def test_all_frames_are_one_window_in_which_every_dot_lies() -> None:
    dataset, panels = found("frames"), drawn("frames").panels
    assert len(panels) == dataset.sizes["frame"]
    assert len({(panel.x, panel.y, panel.height, panel.equal) for panel in panels}) == 1
    (left, right), (low, high) = shared_view(dataset)
    x, y = dataset.plane_position.values.reshape(-1, 2).T
    assert left < x.min() < x.max() < right
    assert low < y.min() < y.max() < high
    assert all(sum(isinstance(mark, Label) for mark in panel.marks) <= MAX_LABELS for panel in panels)


def test_hairs_lead_from_the_frame_before() -> None:
    dataset, panels = found("frames"), drawn("frames").panels
    assert [len(of_style(panel, "hair")) for panel in panels] == [1, 2, 2, 2, 2, 2]
    hair = of_style(panels[2], "hair")[1]
    ways = np.stack([hair.x, hair.y], 1).reshape(-1, 3, 2)
    assert np.allclose(ways[:, :2].swapaxes(0, 1), dataset.plane_position.values[1:3])


def test_a_cluster_has_a_colour_of_its_own_and_keeps_it() -> None:
    many = np.repeat(np.arange(0, 40, 2), 2)
    named = colour_indices(np.stack([many, many]))
    assert set(np.unique(named)) == {-1, *range(len(CLUSTER_COLOURS))}
    assert np.array_equal(named[0], named[1])
    assert PREDICTION_COLOUR not in CLUSTER_COLOURS
    assert colour_indices(np.arange(12).reshape(2, 6) % 6).max() == -1


def test_without_a_prediction_and_without_the_token_that_predicts_there_is_still_a_picture() -> None:
    bare = found("frames").drop_vars(["prediction", "toward_prediction"])
    assert "star" not in picture(bare).caption
    by_three_hands(picture(bare))
    gone = found("frames").isel(token=slice(0, -1))
    panel = frame_panel(gone, 0, colour_indices(gone.label.values), shared_view(gone), "x")
    assert of_style(panel, "rings") == []
    assert "cosine" not in panel.title
