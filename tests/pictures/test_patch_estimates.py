"""The plot of patching by estimate: maps of the estimates, and of the exact effects of the sample."""

import numpy as np

from tests.pictures.cases import cells, example_result, panel_with_title


def test_every_estimate_is_a_cell() -> None:
    restored = example_result("patch_estimates").sel(direction="restore")
    for title, field in (
        ("Stream, estimated", "stream"),
        ("MLP updates, estimated", "mlp"),
        ("Heads: output, estimated", "output"),
    ):
        assert np.array_equal(cells(panel_with_title("patch_estimates", title)).values, restored[field].values)


def test_the_strongest_heads_come_first() -> None:
    panel = panel_with_title("patch_estimates", "Head outputs at one token, estimated")
    largest = np.abs(cells(panel).values).max(1)
    restored = example_result("patch_estimates").sel(direction="restore")
    assert list(largest) == sorted(largest, reverse=True)
    assert largest[0] == np.abs(restored.head_token.values).max()
    layer, head = panel.y.names[0].removeprefix("L").split(".H")
    assert np.array_equal(cells(panel).values[0], restored.head_token.sel(layer=int(layer), head=int(head)).values)


def test_exact_effects_of_the_sample_have_maps_of_their_own() -> None:
    result = example_result("patch_estimates")
    panel = panel_with_title("patch_estimates", "Head outputs at one token, exact sample")
    assert list(panel.y.names) == list(result.sampled_head.values)
    assert np.array_equal(cells(panel).values, result.exact_head_token.sel(direction="restore").values)
