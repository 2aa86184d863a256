"""An analysis that fails with an internal error: the others are reported, and the failure is one line."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rheoscope as rs
from rheoscope.models.checkpoint import save
from rheoscope.report import analysis_runs, report_page
from rheoscope.report.analysis_runs import Subject
from rheoscope.report.report_plans import REPORTS
from rheoscope.report.report_sections import text_analyses
from rheoscope.space.analysis import Analysis
from tests.commands.cases import run_rheoscope
from tests.report.cases import report_results, small

TEXT = "The keys to the cabinet are on the table in the hall"
REASON = "internal error (RuntimeError: expected m1 and m2 to have the same dtype but got: float != c10::Half)"


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "small"
    save(small().network, path, small().tokenizer)
    return path


@pytest.fixture
def broken_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue with an analysis `energy` that raises an error of torch."""
    original = analysis_runs.analysis_by_name

    def fail(trace: Any, **settings: Any) -> Any:
        raise RuntimeError("expected m1 and m2 to have the same dtype\n  but got: float != c10::Half")

    def analysis_by_name(name: str) -> Analysis:
        spec = original(name)
        return Analysis(spec.name, spec.question, fail, spec.needs, spec.fields) if name == "energy" else spec

    monkeypatch.setattr(analysis_runs, "analysis_by_name", analysis_by_name)


@pytest.mark.usefixtures("broken_energy")
def test_a_failed_analysis_leaves_the_others_alone(model_directory: Path, tmp_path: Path) -> None:
    files = ("--full", "--html", "r.html", "--json", "r.json")
    outcome = run_rheoscope(TEXT, "-m", str(model_directory), "--fast", *files, cwd=tmp_path)
    assert outcome.status == 1
    assert outcome.err.startswith(f"rheoscope: energy failed: {REASON}; please report it")
    assert outcome.err.count("\n") == 1
    assert f"energy was skipped: {REASON}" in outcome.words
    assert f"energy was skipped: {REASON}" in (tmp_path / "r.html").read_text()
    numbers = json.loads((tmp_path / "r.json").read_text())
    assert "energy" not in numbers
    assert {"trajectory", "transport", "agreement", "operators"} <= {*numbers}


@pytest.mark.usefixtures("broken_energy")
def test_a_command_with_one_analysis_fails_in_one_line(model_directory: Path) -> None:
    outcome = run_rheoscope("analyse", "energy", TEXT, "-m", str(model_directory))
    assert outcome.status == 1
    assert outcome.err.startswith("rheoscope: internal error (RuntimeError: expected m1")
    assert outcome.err.count("\n") == 1


def test_a_report_names_the_failed_analysis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_clusters(subject: Subject, requests: Any, card: Any) -> Any:
        return analysis_runs.empty_results(subject, draw_nulls=True).with_failure("clusters", RuntimeError("no\nmore"))

    monkeypatch.setattr(report_page, "run_analyses", fail_clusters)
    monkeypatch.setattr(report_page, "TEXT_REPORT", REPORTS["operators"])
    message = rs.save_report(small(), small().trace(TEXT), tmp_path / "r.html")
    assert message.startswith("wrote ")
    assert message.endswith("; clusters failed: internal error (RuntimeError: no more); please report it")


def test_every_section_can_do_without_any_one_analysis() -> None:
    """Without an analysis, a section prints fewer blocks or the same, and never one about the missing analysis."""
    results = report_results(REPORTS["flow"], TEXT, fast=True, of=small())
    n_blocks = {section: len(section.blocks(results)) for section in REPORTS["flow"].sections}
    missing_blocks, subject = 0, Subject(small(), TEXT, small().trace(TEXT))
    for name in text_analyses():
        datasets = {key: dataset for key, dataset in results.datasets.items() if key.split()[0] != name}
        empty = analysis_runs.empty_results(subject, draw_nulls=False)
        reduced = replace(empty, datasets=datasets).with_failure(name, RuntimeError("no"))
        assert reduced.failed_keys == (name,)
        for section in REPORTS["flow"].sections:
            n_missing = n_blocks[section] - len(section.blocks(reduced))
            assert n_missing >= 0, name
            missing_blocks += n_missing
    assert missing_blocks > 0
