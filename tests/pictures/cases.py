"""Small results of the default model, computed once, and assertions that the plot tests share."""

import json
from functools import cache
from typing import Any

import numpy as np
import torch
import xarray as xr

import rheoscope as rs
from rheoscope import catalogue
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer
from rheoscope.picture.head_map import TYPE_COLOURS
from rheoscope.picture.picture import Cells, Line, Panel, Picture
from rheoscope.report.draw.inline import picture_html
from rheoscope.report.draw.paper import to_figure
from rheoscope.report.draw_result import picture_of
from rheoscope.studio.wire import encode_json, picture_json
from tests.report.parts import Parts
from tests.shared_results import shared_result

TEXT = "The keys to the cabinet are on the table in the hall, and the old hall."
TEXTS = ["The keys to the cabinet are", "A dog to the cabinet are"]
"""Two texts that differ in their first words."""
FIVE_TEXTS = [f"{first_word} keys to the cabinet are on the table" for first_word in ("The", "A", "Your", "No", "Some")]
"""As many texts as a confidence interval needs."""
EVERY_HEAD_OF = {layer: [(layer, head) for head in range(4)] for layer in range(6)}
SENSES = {
    "bank": {
        "money": ["She owes a loan to the bank", "They stole gold from the bank"],
        "river": ["Ducks sat on the bank", "Mud covered the bank"],
    },
    "bat": {
        "animal": ["In a dark cave hung the bat", "By night flew the bat"],
        "club": ["He broke the bat", "The player picked up the bat"],
    },
}
GROUPS = {"animals": ["dog", "cat", "horse"], "tools": ["hammer", "saw", "knife"]}
SETTINGS: dict[str, dict[str, Any]] = {
    "agreement": {"draws": 2},
    "attention_patching": {"target": " on", "etas": (0.1, -0.1, 0.0)},
    "boundary": {"layers": [0, 4], "iterations": 3},
    "circuit": {"edges": 2, "tries": 4, "draws": 1},
    "charts": {"n_neighbours": 3, "draws": 2},
    "composition": {"top": 4},
    "decay": {"heads": EVERY_HEAD_OF[3], "M": "symmetric"},
    "distorted_pairs": {"layer": 2, "head": 1, "top": 4},
    "distortion": {"n_neighbours": 3, "draws": 2},
    "surgery_per_head": {"heads": [(2, 1), (4, 3)], "M": "symmetric", "per_head": True},
    "faithfulness": {"targets": [" on", " on"], "foils": [" of", " of"], "fractions": (1.0, 0.0, 0.5), "draws": 1},
    "fixed_point": {"layers": [0, 2, 5], "applications": 3, "iterations": 3},
    "heat": {"draws": 3},
    "massive_tokens": {"norm_ratio": 1.2},
    "relatedness": {"word_list": GROUPS, "draws": 20},
    "operators": {"draws": 3},
    "relation_swap": {"draws": 1},
    "reversed_attention": {"target": " on"},
    "rollout": {"probes": 2},
    "score_attribution": {"layer": 4, "head": 1},
    "senses": {"word_list": SENSES, "draws": 20},
    "stack": {"draws": 2},
    "surgery": {"heads": EVERY_HEAD_OF[2], "M": "symmetric"},
}
"""Settings that keep results small but include everything that a plot draws. Other analyses use their defaults."""


@cache
def model() -> Any:
    return rs.load()


@cache
def small() -> Any:
    """A small untrained model with the tokenizer of the default model, for fast tests."""
    torch.manual_seed(0)
    tokenizer = model().tokenizer
    config = Config(vocabulary=model().view.embed.shape[0], width=16, depth=3, heads=4, hidden=24)
    return rs.load(Transformer(config), tokenizer=tokenizer)


@cache
def trace_of(of: Any) -> Any:
    return of.trace(TEXT)


@cache
def example_result(name: str) -> Any:
    """The result of an analysis with the settings above; `surgery_per_head` is surgery of single heads."""
    return shared_result(f"example {name}", lambda: run_example(name, model()))


def run_example(name: str, of: Any, **settings: Any) -> Any:
    """The result of an analysis of a model, with the settings above and others."""
    analysis = catalogue.analysis_by_name("surgery" if name == "surgery_per_head" else name)
    text = FIVE_TEXTS if analysis.name == "surgery" else TEXT
    subjects = {"view": of.view, "trace": trace_of(of), "model": of, "text": text, "texts": TEXTS}
    return analysis.ask(*(subjects[subject] for subject in analysis.subjects), **SETTINGS.get(name, {}) | settings)


def example_head_types() -> xr.Dataset:
    """Head types for the default model. The first heads have one type each, and all others are mixed."""
    kinds = np.full(model().view.layers * model().view.heads, "mixed", dtype="<U15")
    kinds[: len(TYPE_COLOURS)] = list(TYPE_COLOURS)
    return xr.Dataset({"type": (("layer", "head"), kinds.reshape(model().view.layers, model().view.heads))})


def example_picture(name: str, **options: Any) -> Picture:
    """The picture of the result above."""
    return picture_of(example_result(name), **options)


def panel_with_title(name: str, title: str) -> Panel:
    """The panel with this title in the picture of an analysis."""
    return next(panel for panel in example_picture(name).panels if panel.title == title)


def lines(panel: Panel) -> dict[str, Line]:
    return {mark.name: mark for mark in panel.marks if isinstance(mark, Line)}


def cells(panel: Panel) -> Cells:
    return next(mark for mark in panel.marks if isinstance(mark, Cells))


def check_all_renderers(picture: Picture) -> None:
    """Assert that Matplotlib, SVG and JSON (for the studio and notebooks) contain every panel."""
    figure, wire_picture = to_figure(picture), json.loads(encode_json(picture_json(picture)))
    colour_bars = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
    assert [axes.get_title("left") for axes in figure.axes if axes not in colour_bars] == [
        panel.title for panel in picture.panels
    ]
    maps = [mark for panel in picture.panels for mark in panel.cell_maps]
    assert [axes.get_ylabel() for axes in colour_bars] == [mark.name for mark in maps]
    assert all(mark.name for mark in maps), "every colour scale must have a label"
    marks = [mark for panel in wire_picture["panels"] for mark in panel["marks"]]
    assert [mark["name"] for mark in marks if mark["mark"] == "cells"] == [mark.name for mark in maps]
    assert len(marks) == sum(len(panel.marks) for panel in picture.panels)
    check_html(picture)


def check_html(picture: Picture) -> None:
    """Assert that the page has an SVG per panel and a colour scale per map."""
    parts = Parts(picture_html(picture))
    assert parts.count("svg") == len(picture.panels)
    assert parts.count("div", "scale") == sum(len(panel.cell_maps) for panel in picture.panels)
