"""Tests of every analysis and every mechanism on a device other than the CPU.

The device is the fake one of `tests/elsewhere.py`. Its numbers are computed on the CPU, and it raises where a GPU would: if a
tensor was created without the device of its inputs. tests/laws/every_dtype.py tests other precisions.
"""

import copy
from typing import Any

import numpy as np
import pytest
import torch

import rheoscope as rs
from rheoscope.attention.parameters import tensors_by_path, with_tensors
from rheoscope.attention.zoo import ZOO
from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from tests.cases import model, network, text
from tests.elsewhere import AWAY, elsewhere
from tests.laws.every_analysis import SETTINGS, TEXTS, call
from tests.laws.every_batch import batch_settings
from tests.pretrained.cases import once

FAST_SETTINGS: dict[str, dict[str, Any]] = SETTINGS | {
    "boundary": {"layers": [1], "iterations": 2, "applications": 2},
    "faithfulness": {"targets": [5, 6], "fractions": (0.5,), "draws": 1},
    "fixed_point": {"layers": [1], "iterations": 2, "applications": 2, "draws": 2},
    "rollout": {"probes": 2},
    "stack": {"draws": 1},
    "transport": {"draws": 2, "step_draws": 1},
}
"""The settings of every_analysis.py with fewer iterations, because every iteration creates its tensors in the same way."""
FAST_TEXTS = TEXTS | {"boundary": lambda: [[3, 9, 12, 5]], "faithfulness": lambda: [text(seed, 7) for seed in range(2)]}
"""The texts of every_analysis.py, with fewer ones for analyses that compute one text after another."""


@once
def model_on_away() -> Any:
    with elsewhere() as device:
        return rs.load(copy.deepcopy(network("llama")).to(device))


@once
def two_texts_on_away() -> Any:
    return model_on_away().trace([text(seed, n) for seed, n in enumerate((18, 11))])


@pytest.mark.parametrize("name", ANALYSIS_MODULES)
def test_an_analysis_works_on_the_device_of_its_model(name: str) -> None:
    with elsewhere():
        result = call(name, FAST_SETTINGS, FAST_TEXTS)(model_on_away())
    expected = call(name, FAST_SETTINGS, FAST_TEXTS)(model("llama"))
    assert {field: x.shape for field, x in result.items()} == {field: x.shape for field, x in expected.items()}
    for field in expected.data_vars:
        if expected[field].dtype.kind == "f":
            np.testing.assert_allclose(result[field], expected[field], rtol=1e-4, atol=1e-5, err_msg=str(field))


@pytest.mark.parametrize("name", [name for name in ANALYSIS_MODULES if analysis_by_name(name).batch is not None])
def test_batched_fields_stay_on_the_device_of_the_model(name: str) -> None:
    analysis = analysis_by_name(name)
    assert analysis.batch is not None
    with elsewhere():
        fields = analysis.batch(two_texts_on_away(), **batch_settings(analysis))
    assert {values.device for values in fields.values()} == {AWAY}


@pytest.mark.parametrize("name", ZOO)
def test_a_mechanism_works_on_the_device_of_its_tokens(name: str) -> None:
    mechanism = rs.mechanism(name, **({"dim": 8} if ZOO[name].needs_dim else {}))
    mask = None if name == "sinkhorn" else "causal"
    q, k, v = torch.randn(3, 1, 2, 7, 8, generator=torch.Generator().manual_seed(0)).unbind(0)
    with elsewhere() as device:
        on_device = with_tensors(mechanism, {path: x.to(device) for path, x in tensors_by_path(mechanism).items()})
        rows = [x.to(device).requires_grad_() for x in (q, k, v)]
        out = on_device(*rows, mask=mask)
        out.sum().backward()
        output = out.detach().cpu()
    assert {x.grad.device for x in rows if x.grad is not None} == {AWAY}  # `hard` has no gradients for queries and keys
    torch.testing.assert_close(output, mechanism(q, k, v, mask=mask))
