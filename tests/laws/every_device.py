"""One battery for what a GPU would refuse: every analysis and every mechanism on a device that is not the CPU.

The device is that of `tests/elsewhere.py`, so numbers are the CPU's own, and any tensor made without the device of its inputs is
told. On the code before analyses were declared it finds what a GPU had found: `clusters` and `geometry_kept` mixed two devices.
Mixed precisions are tested on a CPU (tests/laws/every_dtype.py).
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
from tests.laws.every_analysis import SETTINGS, call
from tests.laws.every_batch import batch_settings
from tests.pretrained.cases import once

FEW: dict[str, dict[str, Any]] = SETTINGS | {
    "boundary": {"layers": [1], "iterations": 2},
    "faithfulness": {"targets": [5, 6, 7, 8, 9], "fractions": (0.5,), "draws": 1},
    "fixed_point": {"layers": [1], "iterations": 2},
    "rollout": {"probes": 2},
    "stack": {"draws": 1},
    "transport": {"draws": 2},
}
"""As the gauge battery asks, but no loop more often than shows where its tensors are made: each round makes them as the first does."""


@once
def away() -> Any:
    with elsewhere() as device:
        return rs.load(copy.deepcopy(network("llama")).to(device))


@pytest.mark.parametrize("name", ANALYSIS_MODULES)
def test_an_analysis_works_where_its_model_is(name: str) -> None:
    with elsewhere():
        found = call(name, FEW)(away())
    expected = call(name, FEW)(model("llama"))
    assert {field: x.shape for field, x in found.items()} == {field: x.shape for field, x in expected.items()}
    for field in expected.data_vars:
        if expected[field].dtype.kind == "f":
            np.testing.assert_allclose(found[field], expected[field], rtol=1e-4, atol=1e-5, err_msg=str(field))


@pytest.mark.parametrize("name", [name for name in ANALYSIS_MODULES if analysis_by_name(name).batch is not None])
def test_many_texts_stay_where_their_model_is(name: str) -> None:
    one = analysis_by_name(name)
    assert one.batch is not None
    with elsewhere():
        found = one.batch(away().trace([text(at, n) for at, n in enumerate((18, 11))]), **batch_settings(one))
    assert {values.device for values in found.values()} == {AWAY}


@pytest.mark.parametrize("name", ZOO)
def test_a_mechanism_works_where_its_tokens_are(name: str) -> None:
    made = rs.mechanism(name, **({"dim": 8} if ZOO[name].needs_dim else {}))
    mask = None if name == "sinkhorn" else "causal"
    q, k, v = torch.randn(3, 1, 2, 7, 8, generator=torch.Generator().manual_seed(0)).unbind(0)
    with elsewhere() as device:
        moved = with_tensors(made, {path: x.to(device) for path, x in tensors_by_path(made).items()})
        rows = [x.to(device).requires_grad_() for x in (q, k, v)]
        out = moved(*rows, mask=mask)
        out.sum().backward()
        found = out.detach().cpu()
    assert {x.grad.device for x in rows if x.grad is not None} == {AWAY}  # `hard` has none for queries and keys
    torch.testing.assert_close(found, made(q, k, v, mask=mask))
