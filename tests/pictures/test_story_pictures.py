"""The pictures of a story: the path of the predicting token, next-token bars by layer, and arcs on the text."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from rheoscope.covers.head_types import reading_arcs
from rheoscope.flow.readout import layer_bars
from rheoscope.flow.trajectory import predictor_path
from rheoscope.picture.blocks import Story
from rheoscope.picture.picture import Label, Line, Panel, Shape
from rheoscope.report.draw.inline import PanelFrame, captioned_html
from rheoscope.report.story import STORY_PICTURES, picture_blocks, story_dataset
from tests.report.cases import flow_results
from tests.report.parts import Parts


def all_panels() -> list[Panel]:
    (block,) = picture_blocks(flow_results())
    assert isinstance(block, Story)
    return list(block.panels)


def test_a_story_shows_the_cloud_the_prediction_and_the_heads_in_this_order() -> None:
    assert [line.name for line, _ in STORY_PICTURES] == [
        "movement",
        "next_token",
        "heads_at_work",
        "from_source",
        "groups",
    ]
    titles = [str(panel.title) for panel in all_panels()]
    assert titles[0] == "The path of the predicting token ."
    assert titles[1].startswith("How the prediction ")
    assert [title.split(":")[0] for title in titles[2:]] == [
        reading.name for reading in reading_arcs.readings(flow_results())
    ]
    page = Parts("".join(map(captioned_html, all_panels())))
    assert page.count("svg") == page.count("figcaption") == len(titles)
    assert page.texts["h3"] == titles


def test_the_ring_is_the_last_token_and_its_path_has_every_half_layer() -> None:
    dataset = flow_results().datasets["trajectory"]
    (panel,) = predictor_path.panels(flow_results())
    path = dataset.plane_position.values[:, -1]
    (ring,) = [mark for mark in panel.marks if isinstance(mark, Line) and mark.style == "rings"]
    assert (ring.x[0], ring.y[0]) == tuple(path[-1])
    lines = [mark for mark in panel.marks if isinstance(mark, Line) and mark.style == "solid"]
    assert [line.name for line in lines] == ["attention", "MLP"]
    pieces = np.concatenate([np.stack([line.x, line.y], 1).reshape(-1, 3, 2) for line in lines])
    assert len(pieces) == dataset.sizes["step"]
    for start, end in pairwise(path):
        assert any(np.array_equal(piece[0], start) and np.array_equal(piece[1], end) for piece in pieces)
    labels = [str(mark.text) for mark in panel.marks if isinstance(mark, Label)]
    assert labels[:2] == [".", "embed"]
    assert len(labels) <= predictor_path.MAX_LABELS


def test_a_massive_predicting_token_has_no_path() -> None:
    dataset = flow_results().datasets["trajectory"]
    without_last = flow_results().datasets | {"trajectory": dataset.isel(token=slice(0, -1))}
    assert predictor_path.panels(replace(flow_results(), datasets=without_last)) == []


def test_bars_are_the_probabilities_of_the_lens_and_the_prediction_is_coloured() -> None:
    lens = flow_results().datasets["readout"]
    (panel,) = layer_bars.panels(flow_results())
    bars = [mark for mark in panel.marks if isinstance(mark, Shape)]
    ends = lens.sel(point=[f"L{layer}.resid_post" for layer in reversed(range(6))])
    assert [max(bar.x) for bar in bars] == pytest.approx(ends.top_probabilities.values[:, :3].ravel().tolist())
    is_target = (ends.top_tokens.values[:, :3] == lens.attrs["target"]).ravel()
    assert [bar.colour == "first" for bar in bars] == is_target.tolist()
    assert is_target[0]


def test_arcs_lead_to_the_largest_weights_and_the_story_has_all_of_them() -> None:
    results = flow_results()
    trace, weights = results.required_trace, story_dataset(results).weight
    for reading, panel in zip(reading_arcs.readings(results), all_panels()[2:], strict=True):
        expected = trace.weights(reading.layer, reading.head)[-1].numpy()
        assert weights.sel(reader=reading.name).values == pytest.approx(expected)
        assert reading.keys == np.argsort(-expected, kind="stable")[: reading_arcs.N_KEYS].tolist()
        arcs = [mark for mark in panel.marks if isinstance(mark, Shape)]
        strong = [mark for mark in panel.marks if isinstance(mark, Label) and mark.strong]
        for arc in arcs:
            middle = (max(arc.x) + min(arc.x)) / 2
            sums = [(a.x + b.x) / 2 for a in strong for b in strong]
            assert np.isclose(sums, middle, atol=1e-6).any()
        assert len(arcs) == reading_arcs.N_KEYS


@pytest.mark.parametrize(("n_tokens", "is_short"), [(1, True), (2, False), (9, True), (300, True), (300, False)])
def test_the_line_of_text_has_room_for_every_token_that_is_read(n_tokens: int, is_short: bool) -> None:
    generator = np.random.default_rng(n_tokens)
    weights = generator.dirichlet(np.full(n_tokens, 0.1))
    lengths = generator.integers(1, 4, n_tokens) if is_short else np.full(n_tokens, reading_arcs.MAX_TOKEN_CHARS)
    texts = ["w" * int(length) for length in lengths]
    reading = reading_arcs.Reading(0, 0, n_tokens - 1, weights, "mixed", 1.0)
    keys = reading_arcs.keys_with_room(reading, texts)
    assert keys == reading.keys[: len(keys)]
    assert keys == reading.keys if is_short else keys
    centres = reading_arcs.line_of_text(reading, texts)
    assert {reading.query, *keys} <= set(centres)
    spans = [
        (x - len(texts[item]) / 2, x + len(texts[item]) / 2) if isinstance(item, int) else (x - 0.5, x + 0.5)
        for item, x in centres.items()
    ]
    assert all(a[1] < b[0] for a, b in pairwise(spans))
    assert spans[0][0] >= 0
    assert spans[-1][1] <= reading_arcs.LINE_LENGTH + 1e-9
    positions = [item for item in centres if isinstance(item, int)]
    assert positions == sorted(positions)
    panel = reading_arcs.head_panel(reading, texts, 0.1, "x")
    heights = [y for mark in panel.marks if isinstance(mark, Shape) for y in mark.y]
    assert max(heights) < PanelFrame(panel).y_range[1]


def test_a_text_without_attribution_has_no_arcs() -> None:
    lens = flow_results().datasets["readout"].drop_vars("attribution")
    bare = replace(flow_results(), datasets=flow_results().datasets | {"readout": lens})
    (block,) = picture_blocks(bare)
    assert isinstance(block, Story)
    assert len(block.panels) == 2
    assert "weight" not in story_dataset(bare)
