"""A slow dtype gives one warning."""

import pytest
import torch

from rheoscope.report import dtype_warning
from rheoscope.report.progress_bars import load_model
from tests.models.cases import model


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtype_warning, "dtype_slowdown", lambda dtype: 140.2)
    dtype_warning._warn_once.cache_clear()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_slow_dtype_is_reported_once(
    dtype: str, slow: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {name: model("own", getattr(torch, name)) for name in (dtype, "float32")}
    monkeypatch.setattr("rheoscope.opening.load", lambda *_, dtype, **__: models[dtype])
    for _ in range(2):
        load_model(None, "cpu", dtype)
    warning = f"On this CPU a matrix product in {dtype} takes 140 times as long as in float32; type --dtype float32\n"
    assert capsys.readouterr().err == warning
    load_model(None, "cpu", "float32")
    assert capsys.readouterr().err == ""


def test_a_fast_dtype_is_not_reported(
    slow: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dtype_warning, "dtype_slowdown", lambda dtype: 1.1)
    dtype_warning.warn_if_slow(model("own", torch.bfloat16))
    assert capsys.readouterr().err == ""


def test_float32_is_as_fast_as_itself() -> None:
    assert dtype_warning.dtype_slowdown(torch.float32) == 1
    assert dtype_warning.dtype_slowdown(torch.bfloat16) > 0
