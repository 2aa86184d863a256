"""The model that ships is shared by tests, as long as they leave it as it is."""

import torch

import rheoscope as rs


def test_it_is_opened_once_and_anew_where_a_test_changed_it() -> None:
    model, control = rs.load(), rs.load(untrained=True)
    heard: list[tuple[int, int]] = []
    assert rs.load(progress=lambda done, total: heard.append((done, total))) is model
    assert heard[-1] == (100, 100)
    assert control is rs.load(untrained=True) is not model
    assert rs.load(untrained=True, seed=1) is not control
    weight = next(model.network.parameters())
    with torch.no_grad():
        weight.mul_(2)
    again = rs.load()
    assert again is not model
    assert torch.equal(2 * next(again.network.parameters()), weight)
    assert rs.load() is again
