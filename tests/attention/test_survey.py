"""The survey covers every mechanism of the zoo and reports violated laws."""

from dataclasses import replace

import pytest
import torch

from rheoscope.attention.laws import LAWS, Law
from rheoscope.attention.survey import example_cloud, survey_mechanisms
from rheoscope.attention.zoo import ZOO


def test_every_mechanism_satisfies_its_laws() -> None:
    rows = survey_mechanisms(example_cloud(), tokens=64, width=8)
    assert [row.entry.name for row in rows] == list(ZOO)
    assert all(not row.broken_laws and row.n_laws_satisfied == len(row.entry.laws) for row in rows)


def test_survey_lists_violated_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    violated_law = Law("always violated", lambda mechanism, q, k, v: 1.0)
    monkeypatch.setitem(LAWS, "rows_sum_to_one", replace(violated_law))
    broken_laws = {row.entry.name: row.broken_laws for row in survey_mechanisms(example_cloud(), tokens=64, width=8)}
    assert broken_laws["scaled_dot"] == ["rows_sum_to_one"]
    assert broken_laws["sigmoid"] == []


def test_example_cloud_is_deterministic() -> None:
    assert torch.equal(example_cloud(), example_cloud())
