"""Tests of every batched analysis: the numbers of a text in a batch equal those of the text alone.

The texts differ in length, so the batch has padding. `massive_tokens` uses a low threshold, so that some tokens are massive.
"""

import copy
import inspect
from collections.abc import Callable
from dataclasses import replace
from dis import get_instructions
from typing import Any

import pytest
import torch

import rheoscope as rs
from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis
from tests.cases import double, network, text
from tests.laws.every_analysis import SETTINGS
from tests.pretrained.cases import once

BATCHED = [name for name in ANALYSIS_MODULES if analysis_by_name(name).batch is not None]
MODELS = ["gpt2", "llama", "bert"]
"""A causal model with biases, a rotary model with grouped heads, and a bidirectional post-norm model."""
LENGTHS = (18, 11, 14)
ROUNDING = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}
"""The tolerance on a GPU, relative to the largest number of a field. The models are narrow, so rounding errors do not average out."""
NOT_BATCHED = {("reversed_attention", "bert")}
"""Pairs that support one text only: post-norm models are differentiated by running the model."""


@once
def texts(name: str) -> Any:
    return double(name).trace([text(seed, n) for seed, n in enumerate(LENGTHS)])


def is_refused(function: Callable[[], Any]) -> bool:
    """Whether a call raises RheoscopeError."""
    try:
        function()
    except RheoscopeError:
        return True
    return False


def batch_settings(analysis: Analysis) -> dict[str, Any]:
    """The settings of every_analysis.py that the batched function accepts."""
    assert analysis.batch is not None
    parameters = inspect.signature(analysis.batch).parameters
    return {setting: value for setting, value in SETTINGS.get(analysis.name, {}).items() if setting in parameters}


def result_of_one_text(analysis: Analysis, model: str, trace: Any) -> Any:
    """The result of an analysis on one text."""
    subjects = ({"model": double(model), "trace": trace}[subject] for subject in analysis.subjects)
    return analysis.ask(*subjects, **SETTINGS.get(analysis.name, {}))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", BATCHED)
def test_a_text_in_a_batch_has_the_numbers_of_the_text_alone(name: str, model: str) -> None:
    analysis, traces, settings = analysis_by_name(name), texts(model), batch_settings(analysis_by_name(name))
    assert analysis.batch is not None
    if (name, model) in NOT_BATCHED or is_refused(lambda: result_of_one_text(analysis, model, traces[0])):
        assert is_refused(lambda: analysis.batch(traces, **settings))
        return
    batch = analysis.batch(traces, **settings)
    assert batch
    for index, trace in enumerate(traces):
        alone = result_of_one_text(analysis, model, trace)
        for field, values in batch.items():
            expected = torch.as_tensor(alone[field].values)
            values_of_text = values[index].cpu()
            for axis, dim in enumerate(analysis.fields[field].dims):
                if dim == "token":
                    values_of_text = values_of_text.index_select(axis, torch.tensor(alone.token.values.tolist()))
            torch.testing.assert_close(
                values_of_text.to(expected),
                expected,
                rtol=1e-6,
                atol=1e-9,
                equal_nan=True,
                msg=lambda m, f=field: f"{f}: {m}",
            )


@pytest.mark.parametrize("name", BATCHED)
def test_every_parameter_of_a_batched_function_is_used(name: str) -> None:
    run = inspect.unwrap(analysis_by_name(name).batch)
    read = {step.argval for step in get_instructions(run)} | set(run.__code__.co_cellvars)
    assert set(inspect.signature(run).parameters) <= read


@once
def traces_on_cpu_and_gpu(name: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """The same points of three texts, on the CPU in float32 and on a GPU in a dtype. The weights are rounded to the dtype in both."""
    on_cpu, on_gpu = (
        rs.load(copy.deepcopy(network(name, dtype)).to(*target)) for target in (("cpu", torch.float32), ("cuda",))
    )
    ids = [text(seed, n) for seed, n in enumerate(LENGTHS)]
    gpu_trace = on_gpu.trace(ids)
    return replace(on_cpu.trace(ids), points=gpu_trace.points.float().cpu()), gpu_trace


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(ROUNDING))
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", [name for name in BATCHED if ".flow." in ANALYSIS_MODULES[name]])
def test_a_gpu_agrees_with_the_cpu(name: str, model: str, dtype: torch.dtype) -> None:
    """Up to the rounding of the model's dtype, which can change which of two numbers is larger."""
    assert_batches_agree(name, model, dtype, ROUNDING[dtype])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(ROUNDING))
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", [name for name in BATCHED if ".covers." in ANALYSIS_MODULES[name]])
def test_heads_on_a_gpu_agree_with_the_cpu(name: str, model: str, dtype: torch.dtype) -> None:
    """Rounding changes the ranks of a dozen scores, so agreement is compared in float32 only."""
    if name == "agreement" and dtype != torch.float32:
        fields = analysis_by_name(name).batch(
            traces_on_cpu_and_gpu(model, dtype)[1], **batch_settings(analysis_by_name(name))
        )
        assert bool((fields["agreement"].nan_to_num().abs() <= 1).all())
        return
    assert_batches_agree(name, model, dtype, max(1e-2, 1.5 * ROUNDING[dtype]))


def assert_batches_agree(name: str, model: str, dtype: torch.dtype, rounding: float) -> None:
    """Assert that every field of a batch agrees on the CPU and on a GPU."""
    analysis, settings = analysis_by_name(name), batch_settings(analysis_by_name(name))
    on_cpu, on_gpu = traces_on_cpu_and_gpu(model, dtype)
    if is_refused(lambda: analysis.batch(on_cpu, **settings)):
        assert is_refused(lambda: analysis.batch(on_gpu, **settings))
        return
    expected, result = analysis.batch(on_cpu, **settings), analysis.batch(on_gpu, **settings)
    assert list(result) == list(expected)
    for field, values in expected.items():
        gpu_values = result[field].cpu()
        assert gpu_values.shape == values.shape
        if values.is_floating_point():
            assert torch.equal(gpu_values.isnan(), values.isnan()), field
            gap = (gpu_values.double() - values.double()).nan_to_num().abs().max()
            assert gap <= rounding * values.nan_to_num().abs().max().clamp(min=1e-3), field
