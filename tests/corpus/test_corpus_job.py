"""Jobs from the command line, from TOML and from a manifest."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from rheoscope.corpus.corpus_job import DEFAULT_ANALYSES, Job, apply_settings, job_from_mapping, settings_from_toml
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis


def test_a_job_is_restored_from_its_manifest() -> None:
    job = Job(("a.txt", "b.jsonl"), "gpt2", {"agreement": {"draws": 0}}, length=64, pack=True, untrained=True, seed=3)
    assert job_from_mapping(json.loads(json.dumps(asdict(job)))) == job


def test_the_default_analyses_run_in_batches() -> None:
    job = Job(("a.txt",)).validate()
    assert list(job.analyses) == list(DEFAULT_ANALYSES)
    assert all(
        isinstance(request.analysis, Analysis) and request.analysis.batch is not None for request in job.requests
    )


def test_files_in_toml_are_relative_to_its_folder(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('texts = ["a.txt", "/b.txt"]\nanalyses = ["readout"]\n')
    job = job_from_mapping(settings_from_toml(tmp_path / "job.toml"))
    assert job.texts == (str(tmp_path / "a.txt"), "/b.txt")
    assert job.analyses == {"readout": {}}


def test_paths_and_devices_do_not_change_the_fingerprint() -> None:
    first, second = Job(("a.txt",), "model", device="cpu"), Job(("elsewhere/a.txt",), "other/model", device="cuda")
    assert first.fingerprint_settings() == second.fingerprint_settings()
    assert first.fingerprint_settings() != Job(("a.txt",), "model", length=100).fingerprint_settings()


@pytest.mark.parametrize(
    ("settings", "pattern"),
    [
        ({"text": ["a"]}, "no setting 'text'"),
        ({"texts": ["a"], "analyses": []}, "needs at least one analysis"),
        ({"texts": ["a"], "top": -1}, "top must be an integer of at least 0, got -1"),
    ],
)
def test_an_invalid_job_is_refused(settings: dict[str, object], pattern: str) -> None:
    with pytest.raises(RheoscopeError, match=pattern):
        job_from_mapping(settings).validate()


def test_typed_settings_are_toml_values() -> None:
    assignments = ["clusters.grain=half", "clusters.keep_massive=true", "readout.top=3"]
    result = apply_settings({"clusters": {}, "readout": {"tokens_before": 2}}, assignments)
    assert result == {"clusters": {"grain": "half", "keep_massive": True}, "readout": {"tokens_before": 2, "top": 3}}
    with pytest.raises(RheoscopeError, match=r"must have the form ANALYSIS\.SETTING=VALUE"):
        apply_settings({"clusters": {}}, ["grain=half"])


def test_a_broken_toml_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("texts = [")
    with pytest.raises(RheoscopeError, match="cannot read"):
        settings_from_toml(tmp_path / "job.toml")
