"""The speed table has a row for every mechanism and length."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rheoscope.attention import speed as measuring
from rheoscope.attention.speed import CPU_SETTING, BenchmarkRow, SpeedRatio, benchmark_mechanisms, run_benchmark
from rheoscope.attention.zoo import ZOO
from rheoscope.report import speed_report
from rheoscope.report.speed_report import (
    device_setting,
    markdown_table,
    row_texts,
    sort_by_mechanism,
    speed_table,
    speed_to_json,
)
from rheoscope.shapes import RheoscopeError

SMALL = replace(CPU_SETTING, heads=2, width=8, rounds=2, seconds=0.01, exact=8)


def test_a_row_for_every_mechanism_and_length() -> None:
    mechanisms = {name: benchmark_mechanisms(2, 8)[name] for name in ("metric", "hard", "sinkhorn", "soft-cap")}
    rows = list(run_benchmark(SMALL, (4, 8), mechanisms))
    assert [(row.name, row.tokens) for row in rows] == [(name, n) for n in (4, 8) for name in mechanisms]
    metric, hard = rows[0], rows[1]
    assert metric.lowering == "sdpa"
    assert metric.forward is not None
    assert metric.both is not None
    assert metric.error is not None
    assert metric.error < 20  # in float32, a few roundings beside torch's own
    assert hard.both is None
    assert hard.gradient_error is None
    assert speed_to_json(rows, SMALL)["rows"][0]["forward"]["value"] == metric.forward.value


def test_slow_measurements_are_skipped_with_a_note() -> None:
    slow = replace(SMALL, seconds=1e-9)
    rows = list(run_benchmark(slow, (4, 64), {"relu": benchmark_mechanisms(2, 8)["relu"]}))
    assert rows[0].note.startswith("timed once: ")
    assert rows[0].error is not None
    assert rows[1].forward is None
    assert rows[1].error is None
    assert rows[1].note.startswith("skipped: about")
    assert rows[1].note in row_texts(rows[1])[-1]


def test_the_time_limit_is_respected() -> None:
    rows = list(run_benchmark(replace(SMALL, limit=0.0), (4,), {"relu": benchmark_mechanisms(2, 8)["relu"]}))
    assert [row.note for row in rows] == ["skipped: the time limit of 0 s was reached"]


def test_out_of_memory_is_a_row_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_out_of_memory(*inputs: object) -> float:
        raise torch.OutOfMemoryError("Tried to allocate 40.00 GiB.")

    monkeypatch.setattr(measuring, "_warm_call_seconds", raise_out_of_memory)
    (row,) = run_benchmark(SMALL, (4,), {"relu": benchmark_mechanisms(2, 8)["relu"]})
    assert row.note == "failed: Tried to allocate 40.00 GiB."
    assert row.forward is None


def test_every_mechanism_of_the_zoo_is_compared() -> None:
    assert set(ZOO) < set(benchmark_mechanisms(2, 8))


def test_all_formats_have_the_same_row() -> None:
    row = BenchmarkRow(
        "metric", 8, "sdpa", "it folds", SpeedRatio(0.05, 0.001, 3), SpeedRatio(2.0, 0.0, 1), 1.25, None, 3 << 20, 0.5
    )
    texts = ["metric", "8", "0.0500 ± 0.0010", "2.00", "1.25 ×", "", "3 MiB", "0.5 s", "sdpa"]
    assert row_texts(row) == texts
    assert [cell.text for cell in speed_table([row], SMALL).rows[0]] == texts
    assert markdown_table([row]).splitlines()[-1] == f"| {' | '.join(texts)} |"


def test_rows_are_sorted_by_mechanism() -> None:
    rows = [BenchmarkRow(name, n, "sdpa", "") for n in (8, 4) for name in ("b", "a")]
    assert [(row.name, row.tokens) for row in sort_by_mechanism(rows)] == [("b", 4), ("b", 8), ("a", 4), ("a", 8)]


def test_a_missing_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_setting(None) == CPU_SETTING
    for device in ("cuda", "tpu"):
        with pytest.raises(RheoscopeError, match="type device='cpu'"):
            device_setting(device)


def test_the_bench_prints_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(speed_report, "CPU_SETTING", SMALL)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    speed_report.run_speed_bench([4], tmp_path / "speed.json", None)
    output = capsys.readouterr().out
    assert "kernel_rbf" in output
    assert "wrote" in output
    assert (tmp_path / "speed.json").exists()
