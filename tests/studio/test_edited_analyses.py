"""What is told of an edited model is what is told of a model whose weights carry the edit."""

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
BY = 2.5
SCALED = Edit(0, 1, "scale", "both", BY)
"""Of the first layer, so that the mean of the text is the same in whichever order its tokens stand."""
SILENCED = Edit(0, 2, "ablate", "both")
"""What it gives is another thing in another order, and the directions of what it carries are nothing but rounding."""
ALONE = ("relation_swap", "boundary", "energy", "distortion")


@cache
def loud() -> Any:
    """Untrained, with biases, no positions, and scores so large that attention is anything but even."""
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
def carrying(silenced: bool) -> Any:
    """The same with the edits in its weights: q' = c (u − ū) W_Q + ū W_Q + b_Q, values alike; a silenced head's value is its mean."""
    network, trace = deepcopy(loud().network), loud().trace(IDS)
    heads = trace.view.layer_heads[0]
    mean = heads.norm.apply(trace.layer_input(0)).mean(0)
    read = next(module.read for module in network.modules() if hasattr(module, "read") and hasattr(module, "write"))
    width = 4
    with torch.no_grad():
        for kind in (0, 2):  # queries and values; keys stay
            rows = slice(kind * 16 + width, kind * 16 + 2 * width)
            read.bias[rows] += (1 - BY) * (read.weight[rows] @ mean)
            read.weight[rows] *= BY
        if silenced:
            rows = slice(2 * 16 + 2 * width, 2 * 16 + 3 * width)
            read.weight[rows] = 0
            read.bias[rows] = heads.outputs(trace.layer_input(0))[2].mean(0)
    return rs.load(network)


def told(name: str, model: Any, trace: Any, settings: dict[str, Any]) -> Any:
    ask = getattr(rs, name)
    first = {"relation_swap": (model, trace), "rollout": (model, trace), "fixed_point": (model, trace)}
    first |= {"attention_patching": (model, trace, 5), "reversed_attention": (model, trace, 5)}
    first |= dict.fromkeys(("surgery", "decay", "boundary"), (model, IDS)) | {"faithfulness": (model, [IDS], [5])}
    first |= {"operators": (model.view,), "composition": (model.view,)}
    return ask(*first.get(name, (trace,)), **settings)


ASKED: list[tuple[str, dict[str, Any]]] = [
    ("relation_swap", {"draws": 2}),
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


@pytest.mark.parametrize(("name", "settings"), ASKED, ids=lambda one: str(one))
def test_an_edited_model_is_one_whose_weights_carry_the_edit(name: str, settings: dict[str, Any]) -> None:
    edited = with_edits(loud(), [SCALED] if name in ALONE else [SCALED, SILENCED])
    twin = carrying(name not in ALONE)
    found = told(name, edited, edited.trace(IDS), settings)
    wanted = told(name, twin, twin.trace(IDS), settings)
    before = told(name, loud(), loud().trace(IDS), settings)
    assert set(found) == set(wanted)
    moved = False
    for field in wanted:
        if wanted[field].dtype.kind != "f":
            continue
        want, came = wanted[field].values, found[field].values
        if came.shape != want.shape:  # more columns have more singular values, all 0, and no more angles
            assert np.nan_to_num(came[..., want.shape[-1] :]).max() < 1e-5
            came = came[..., : want.shape[-1]]
        size = np.nanmax(np.abs(want)) if np.isfinite(want).any() else 0.0
        np.testing.assert_allclose(came, want, rtol=2e-3, atol=1e-5 + 2e-4 * size, err_msg=field)
        moved = moved or not np.allclose(before[field].values, want, rtol=1e-2, atol=1e-3, equal_nan=True)
    assert moved
