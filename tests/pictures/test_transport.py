"""Tests of the plot of swapping tokens."""

import numpy as np
import xarray as xr

from rheoscope.flow.transport.picture import MAX_SWAPS, swap_cycles, swap_panel
from rheoscope.picture.picture import Line
from rheoscope.report.draw.inline import panel_svg


def coupling_dataset(coupling: list[list[int]]) -> xr.Dataset:
    steps, tokens = np.shape(coupling)
    token_texts = [f"w{index}" for index in range(tokens)]
    coords = {
        "step": [f"L{k}.resid_post" for k in range(steps)],
        "token": range(tokens),
        "token_text": ("token", token_texts),
    }
    return xr.Dataset({"coupling": (("step", "token"), np.array(coupling))}, coords)


def test_layer_with_most_swaps_is_drawn_cycle_by_cycle() -> None:
    panel = swap_panel(coupling_dataset([[1, 0, 2, 3, 4], [1, 2, 0, 4, 3], [0, 1, 2, 3, 4]]))
    assert panel.title == "5 of 5 tokens swap in L1"
    lines = [mark for mark in panel.marks if isinstance(mark, Line)]
    assert [(mark.name, list(mark.y)) for mark in lines] == [
        ("0 w0", [0, -1]), ("1 w1", [-1, -2]), ("2 w2", [-2, 0]), ("3 w3", [-3, -4]), ("4 w4", [-4, -3]),
    ]  # fmt: skip
    assert len({mark.colour for mark in lines}) == 2
    assert swap_cycles(np.array([1, 0, 3, 2]), [0, 1, 2, 3]) == [(0, 0), (0, 1), (1, 2), (1, 3)]


def test_no_swap_has_a_title_and_many_swaps_are_truncated() -> None:
    no_swaps = swap_panel(coupling_dataset([[0, 1, 2]]))
    assert no_swaps.title == "No token swaps"
    assert panel_svg(no_swaps)
    truncated = swap_panel(coupling_dataset([[*range(1, 60), 0]]))
    assert sum(isinstance(mark, Line) for mark in truncated.marks) == MAX_SWAPS
    assert f"{MAX_SWAPS} of 60 tokens are drawn" in truncated.about
