"""Threads by idle cores; what the user set stays."""

import os

import pytest
import torch

from rheoscope.report.threads import use_idle_cores


@pytest.fixture(autouse=True)
def threads() -> None:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_busy_machine_leaves_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (9.0, 9.0, 9.0))
    torch.set_num_threads(2)
    use_idle_cores()
    assert torch.get_num_threads() == 1


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(os, "getloadavg", lambda: (9.0, 9.0, 9.0))
    torch.set_num_threads(2)
    use_idle_cores()
    assert torch.get_num_threads() == 2
