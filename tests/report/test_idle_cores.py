"""The number of threads follows the idle cores, unless the user sets it."""

import os
from pathlib import Path

import pytest
import torch

from rheoscope.report import idle_cores as module
from rheoscope.report.idle_cores import busy_threads, core_quota, use_idle_cores


@pytest.fixture(autouse=True)
def threads() -> None:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_busy_machine_leaves_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(module, "busy_threads", lambda: 9.0)
    torch.set_num_threads(2)
    use_idle_cores()
    assert torch.get_num_threads() == 1


def test_the_current_load_counts_not_the_average(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = tmp_path / "loadavg"
    load.write_text("9.00 9.00 9.00 1/95 20536\n")
    monkeypatch.setattr(module, "LOADAVG_FILE", load)
    assert busy_threads() == 0
    load.write_text("0.00 0.00 0.00 5/95 20536\n")
    assert busy_threads() == 4
    monkeypatch.setattr(module, "LOADAVG_FILE", tmp_path / "none")
    monkeypatch.setattr(os, "getloadavg", lambda: (7.0, 0.0, 0.0))
    assert busy_threads() == 7


def test_the_quota_of_a_container_limits_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = tmp_path / "cpu.max", tmp_path / "cpu.cfs_quota_us"
    assert core_quota((new, old)) > 1000
    new.write_text("max 100000\n")
    assert core_quota((new, old)) > 1000
    new.write_text("150000 100000\n")
    assert core_quota((new, old)) == 2
    new.unlink()
    old.write_text("50000\n")
    (tmp_path / "cpu.cfs_period_us").write_text("100000\n")
    assert core_quota((new, old)) == 1
    old.write_text("-1\n")
    assert core_quota((new, old)) > 1000


def test_omp_num_threads_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(module, "busy_threads", lambda: 9.0)
    torch.set_num_threads(2)
    use_idle_cores()
    assert torch.get_num_threads() == 2
