"""One battery for every analysis that asks many texts at once: each text's numbers are those it has alone.

Texts differ in length, so that padding stands beside them; one of them is asked with its longest tokens as massive ones.
"""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rheoscope.catalogue import TABLE, analysis
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis
from tests.cases import double, text
from tests.laws.every_analysis import SETTINGS
from tests.pretrained.cases import once

BATCHED = [name for name in TABLE if analysis(name).batch is not None]
MODELS = ["gpt2", "llama", "bert"]
"""Causal with biases, rotary with grouped heads, and one that looks both ways after its norms."""
LENGTHS = (18, 11, 14)
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
    one, traces, settings = analysis(name), texts(model), batch_settings(analysis(name))
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
            mine = values[at]
            for axis, dim in enumerate(one.fields[field].dims):
                if dim == "token":
                    mine = mine.index_select(axis, torch.tensor(alone.token.values.tolist()))
            torch.testing.assert_close(
                mine.to(expected), expected, rtol=1e-6, atol=1e-9, equal_nan=True, msg=lambda m, f=field: f"{f}: {m}"
            )
