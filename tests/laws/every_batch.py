"""One battery for every analysis that asks many texts at once: each text's numbers are those it has alone.

Texts differ in length, so that padding stands beside them; one of them is asked with its longest tokens as massive ones.
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
"""Causal with biases, rotary with grouped heads, and one that looks both ways after its norms."""
LENGTHS = (18, 11, 14)
ROUNDED = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}
"""How far a number may be off on a GPU, of the largest of its field: models of the tests are narrow, so rounding does not average out."""
ALONE = {("reversed_attention", "bert")}
"""One text at a time: a stream that is no sum is differentiated by running the model."""


@once
def texts(name: str) -> Any:
    return double(name).trace([text(at, n) for at, n in enumerate(LENGTHS)])


def refused(ask: Callable[[], Any]) -> bool:
    """Whether the model has not got what is asked about."""
    try:
        ask()
    except RheoscopeError:
        return True
    return False


def batch_settings(one: Analysis) -> dict[str, Any]:
    """What the battery asks otherwise than by default, as far as it can be asked of many texts."""
    assert one.batch is not None
    known = inspect.signature(one.batch).parameters
    return {setting: value for setting, value in SETTINGS.get(one.name, {}).items() if setting in known}


def asked(one: Analysis, model: str, trace: Any) -> Any:
    """What it answers to one text alone."""
    subjects = ({"model": double(model), "trace": trace}[subject] for subject in one.subjects)
    return one.ask(*subjects, **SETTINGS.get(one.name, {}))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", BATCHED)
def test_many_texts_at_once_are_each_alone(name: str, model: str) -> None:
    one, traces, settings = analysis_by_name(name), texts(model), batch_settings(analysis_by_name(name))
    assert one.batch is not None
    if (name, model) in ALONE or refused(lambda: asked(one, model, traces[0])):
        assert refused(lambda: one.batch(traces, **settings))
        return
    found = one.batch(traces, **settings)
    assert found
    for at, trace in enumerate(traces):
        alone = asked(one, model, trace)
        for field, values in found.items():
            expected = torch.as_tensor(alone[field].values)
            mine = values[at].cpu()
            for axis, dim in enumerate(one.fields[field].dims):
                if dim == "token":
                    mine = mine.index_select(axis, torch.tensor(alone.token.values.tolist()))
            torch.testing.assert_close(
                mine.to(expected), expected, rtol=1e-6, atol=1e-9, equal_nan=True, msg=lambda m, f=field: f"{f}: {m}"
            )


@pytest.mark.parametrize("name", BATCHED)
def test_no_setting_is_taken_and_not_read(name: str) -> None:
    run = inspect.unwrap(analysis_by_name(name).batch)
    read = {step.argval for step in get_instructions(run)} | set(run.__code__.co_cellvars)
    assert set(inspect.signature(run).parameters) <= read


@once
def on_both(name: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """The same points of three texts on a GPU, in a model of a dtype, and on the CPU in float32, weights rounded alike."""
    here, there = (
        rs.load(copy.deepcopy(network(name, dtype)).to(*where)) for where in (("cpu", torch.float32), ("cuda",))
    )
    ids = [text(at, n) for at, n in enumerate(LENGTHS)]
    seen = there.trace(ids)
    return replace(here.trace(ids), points=seen.points.float().cpu()), seen


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(ROUNDED))
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", [name for name in BATCHED if ".flow." in ANALYSIS_MODULES[name]])
def test_a_gpu_gives_what_a_cpu_gives(name: str, model: str, dtype: torch.dtype) -> None:
    """Up to rounding: of float32, or of what the model itself computes in; which of two is the larger may then change."""
    alike(name, model, dtype, ROUNDED[dtype])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(ROUNDED))
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", [name for name in BATCHED if ".covers." in ANALYSIS_MODULES[name]])
def test_heads_on_a_gpu_are_those_on_a_cpu(name: str, model: str, dtype: torch.dtype) -> None:
    """Ranks of a dozen scores change places where a projection is rounded: they are compared in float32 alone."""
    if name == "agreement" and dtype != torch.float32:
        found = analysis_by_name(name).batch(on_both(model, dtype)[1], **batch_settings(analysis_by_name(name)))
        assert bool((found["agreement"].nan_to_num().abs() <= 1).all())
        return
    alike(name, model, dtype, max(1e-2, 1.5 * ROUNDED[dtype]))


def alike(name: str, model: str, dtype: torch.dtype, rounding: float) -> None:
    """Every field of a batch, on both."""
    one, settings = analysis_by_name(name), batch_settings(analysis_by_name(name))
    here, there = on_both(model, dtype)
    if refused(lambda: one.batch(here, **settings)):
        assert refused(lambda: one.batch(there, **settings))
        return
    expected, found = one.batch(here, **settings), one.batch(there, **settings)
    assert list(found) == list(expected)
    for field, due in expected.items():
        mine = found[field].cpu()
        assert mine.shape == due.shape
        if due.is_floating_point():
            assert torch.equal(mine.isnan(), due.isnan()), field
            gap = (mine.double() - due.double()).nan_to_num().abs().max()
            assert gap <= rounding * due.nan_to_num().abs().max().clamp(min=1e-3), field
