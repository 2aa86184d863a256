"""Tests share the default model unless they change it."""

import torch

import rheoscope as rs


def test_default_model_is_loaded_once_and_again_after_a_change() -> None:
    model, control = rs.load(), rs.load(untrained=True)
    calls: list[tuple[int, int]] = []
    assert rs.load(progress=lambda done, total: calls.append((done, total))) is model
    assert calls[-1] == (100, 100)
    assert control is rs.load(untrained=True) is not model
    assert rs.load(untrained=True, seed=1) is not control
    weight = next(model.network.parameters())
    with torch.no_grad():
        weight.mul_(2)
    again = rs.load()
    assert again is not model
    assert torch.equal(2 * next(again.network.parameters()), weight)
    assert rs.load() is again
