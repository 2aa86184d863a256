"""Analyses of an edited model equal those of a model with the edit written into its weights."""

from copy import deepcopy
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import rheoscope as rs
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer
from rheoscope.studio.edited_model import with_edits
from rheoscope.studio.edits import Edit

IDS = [3, 7, 1, 11, 5, 2, 9, 4, 8, 6, 12, 10]
FACTOR = 2.5
SCALED = Edit(0, 1, "scale", "both", FACTOR)
"""An edit of the first layer, where the mean of the text does not depend on the order of its tokens."""
ABLATED = Edit(0, 2, "ablate", "both")
"""The mean output of this head depends on the order of the tokens, and the directions of its content are only rounding."""
WITHOUT_ABLATION = ("relation_swap", "boundary", "energy", "distortion")


@cache
def random_model() -> Any:
    """A random model with biases, without positions, and with scores so large that attention is far from uniform."""
    torch.manual_seed(3)
    config = Config(
        vocabulary=16, width=16, depth=2, heads=4, hidden=24, context=32, position="none", norm="layer", bias=True
    )
    network = Transformer(config)
    with torch.no_grad():
        for name, x in network.named_parameters():
            x.copy_(
                torch.randn_like(x) * (0.5 if x.ndim > 1 else 0.3)
                + (1.0 if "norm" in name and "weight" in name else 0.0)
            )
    return rs.load(network)


@cache
def model_with_written_edits(is_ablated: bool) -> Any:
    """The same model with the edits in its weights: q' = c (u − ū) W_Q + ū W_Q + b_Q, and values likewise."""
    network, trace = deepcopy(random_model().network), random_model().trace(IDS)
    heads = trace.view.layer_heads[0]
    mean = heads.norm.apply(trace.layer_input(0)).mean(0)
    projection = next(
        module.read for module in network.modules() if hasattr(module, "read") and hasattr(module, "write")
    )
    width = 4
    with torch.no_grad():
        for kind in (0, 2):  # queries and values, not keys
            rows = slice(kind * 16 + width, kind * 16 + 2 * width)
            projection.bias[rows] += (1 - FACTOR) * (projection.weight[rows] @ mean)
            projection.weight[rows] *= FACTOR
        if is_ablated:
            rows = slice(2 * 16 + 2 * width, 2 * 16 + 3 * width)
            projection.weight[rows] = 0
            projection.bias[rows] = heads.outputs(trace.layer_input(0))[2].mean(0)
    return rs.load(network)


def run_analysis(name: str, model: Any, trace: Any, settings: dict[str, Any]) -> Any:
    ask = getattr(rs, name)
    first = {"relation_swap": (model, trace), "rollout": (model, trace), "fixed_point": (model, trace)}
    first |= {"attention_patching": (model, trace, 5), "reversed_attention": (model, trace, 5)}
    first |= dict.fromkeys(("surgery", "decay", "boundary"), (model, IDS)) | {"faithfulness": (model, [IDS], [5])}
    first |= {"operators": (model.view,), "composition": (model.view,)}
    return ask(*first.get(name, (trace,)), **settings)


REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("relation_swap", {"draws": 1}),
    ("attention_patching", {"etas": (-0.3, 0.0, 0.3)}),
    ("surgery", {}),
    ("surgery", {"heads": [(0, 1), (1, 2)], "M": "rank 2", "F": "symmetric"}),
    ("surgery", {"per_head": True, "heads": [(0, 1), (1, 2)]}),
    ("decay", {"heads": [(0, 1)]}),
    ("faithfulness", {"draws": 1, "fractions": (0.0, 0.4, 1.0)}),
    ("rollout", {"probes": 3}),
    ("fixed_point", {"iterations": 6, "applications": 2, "draws": 5}),
    ("boundary", {"iterations": 4, "applications": 2}),
    ("reversed_attention", {}),
    ("energy", {}),
    ("distortion", {"draws": 0}),
    ("operators", {"draws": 0}),
]


@pytest.mark.parametrize(("name", "settings"), REQUESTS, ids=lambda value: str(value))
def test_an_edited_model_equals_a_model_with_the_edit_in_its_weights(name: str, settings: dict[str, Any]) -> None:
    edited = with_edits(random_model(), [SCALED] if name in WITHOUT_ABLATION else [SCALED, ABLATED])
    written_model = model_with_written_edits(name not in WITHOUT_ABLATION)
    result = run_analysis(name, edited, edited.trace(IDS), settings)
    expected = run_analysis(name, written_model, written_model.trace(IDS), settings)
    unedited = run_analysis(name, random_model(), random_model().trace(IDS), settings)
    assert set(result) == set(expected)
    has_changed = False
    for field in expected:
        if expected[field].dtype.kind != "f" or "gauge" in expected[field].attrs:  # bare weights have no edited version
            continue
        expected_values, values = expected[field].values, result[field].values
        if values.shape != expected_values.shape:  # extra columns add singular values that are 0
            assert np.nan_to_num(values[..., expected_values.shape[-1] :]).max() < 1e-5
            values = values[..., : expected_values.shape[-1]]
        size = np.nanmax(np.abs(expected_values)) if np.isfinite(expected_values).any() else 0.0
        np.testing.assert_allclose(values, expected_values, rtol=2e-3, atol=1e-5 + 2e-4 * size, err_msg=field)
        has_changed = has_changed or not np.allclose(
            unedited[field].values, expected_values, rtol=1e-2, atol=1e-3, equal_nan=True
        )
    assert has_changed
