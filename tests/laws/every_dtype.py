"""Tests of every analysis in half precision: its numbers deviate by no more than the dtype allows."""

import copy
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import rheoscope as rs
from rheoscope.catalogue import ANALYSIS_MODULES
from tests.cases import model, network
from tests.laws.every_analysis import call
from tests.place import PLACE

RANKED = {"density_clusters", "purity", "distorted_pairs", "agreement", "circuit"}
"""Counts, ranks and top lists. bfloat16 may change an order, so only their fields and dtypes are checked there."""
HALF_DTYPES = [torch.bfloat16, torch.float16]


@cache
def float64_model() -> Any:
    return rs.load(copy.deepcopy(network("own", torch.float64)).cpu())


@cache
def float64_result(name: str) -> Any:
    return call(name)(float64_model())


@pytest.mark.parametrize("dtype", HALF_DTYPES if PLACE.type == "cpu" else [torch.float32, *HALF_DTYPES], ids=str)
@pytest.mark.parametrize("name", ANALYSIS_MODULES)
def test_every_analysis_is_as_accurate_as_its_dtype_allows(name: str, dtype: torch.dtype) -> None:
    """Ranks and draws jump with the last digit, so the median deviation over the fields is checked."""
    result, reference = call(name)(model("own", dtype)), float64_result(name)
    fields = [field for field in result.data_vars if result[field].dtype.kind == "f"]
    assert all(result[field].dtype.itemsize >= 4 for field in fields)
    assert {str(field) for field in result.data_vars} == {str(field) for field in reference.data_vars}
    if name in RANKED and dtype is torch.bfloat16:
        return
    deviations = [relative_deviation(result[field].values, reference[field].values) for field in fields]
    median = np.nanmedian([deviation for deviation in deviations if deviation is not None])
    assert median <= max(0.04, 20 * torch.finfo(dtype).eps)


def relative_deviation(values: Any, reference: Any) -> float | None:
    """The largest difference divided by the largest value. None if there is nothing to compare."""
    is_finite = np.isfinite(reference)
    if not is_finite.any():
        return None
    return float(np.abs(values - reference)[is_finite].max() / max(np.abs(reference[is_finite]).max(), 1e-30))
