"""The survey looks at every mechanism of the zoo, on one cloud, and a broken law shows."""

from dataclasses import replace

import pytest
import torch

from rheoscope.attention.laws import LAWS, Law
from rheoscope.attention.survey import cloud, survey
from rheoscope.attention.zoo import ZOO


def test_every_mechanism_keeps_its_laws_on_the_cloud() -> None:
    rows = survey(cloud(), tokens=64, width=8)
    assert [row.named.name for row in rows] == list(ZOO)
    assert all(not row.broken and row.kept == len(row.named.laws) for row in rows)


def test_a_broken_law_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    false = Law("nothing is ever true", lambda mechanism, q, k, v: 1.0)
    monkeypatch.setitem(LAWS, "rows_sum_to_one", replace(false))
    broken = {row.named.name: row.broken for row in survey(cloud(), tokens=64, width=8)}
    assert broken["scaled_dot"] == ["rows_sum_to_one"]
    assert broken["sigmoid"] == []


def test_the_cloud_is_always_the_same() -> None:
    assert torch.equal(cloud(), cloud())
