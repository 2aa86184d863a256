"""A job from the command line, from TOML and back from a manifest."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from rheoscope.corpus.corpus_job import DEFAULT_ANALYSES, Job, apply_settings, job_from_mapping, settings_from_toml
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis


def test_a_job_comes_back_from_its_manifest() -> None:
    job = Job(("a.txt", "b.jsonl"), "gpt2", {"agreement": {"draws": 0}}, length=64, pack=True, untrained=True, seed=3)
    assert job_from_mapping(json.loads(json.dumps(asdict(job)))) == job


def test_the_standard_set_can_be_asked_of_many_texts_at_once() -> None:
    job = Job(("a.txt",)).validate()
    assert list(job.analyses) == list(DEFAULT_ANALYSES)
    assert all(isinstance(one.analysis, Analysis) and one.analysis.batch is not None for one in job.requests)


def test_toml_names_files_from_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('texts = ["a.txt", "/b.txt"]\nanalyses = ["readout"]\n')
    job = job_from_mapping(settings_from_toml(tmp_path / "job.toml"))
    assert job.texts == (str(tmp_path / "a.txt"), "/b.txt")
    assert job.analyses == {"readout": {}}


def test_where_texts_lie_and_where_it_runs_make_no_other_job() -> None:
    one, other = Job(("a.txt",), "model", device="cpu"), Job(("elsewhere/a.txt",), "other/model", device="cuda")
    assert one.fingerprint_settings() == other.fingerprint_settings()
    assert one.fingerprint_settings() != Job(("a.txt",), "model", length=100).fingerprint_settings()


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"text": ["a"]}, "no setting 'text'"),
        ({"texts": ["a"], "analyses": []}, "no analysis was named"),
        ({"texts": ["a"], "top": -1}, "top is"),
    ],
)
def test_what_makes_no_job_is_refused(told: dict[str, object], said: str) -> None:
    with pytest.raises(RheoscopeError, match=said):
        job_from_mapping(told).validate()


def test_settings_are_typed_as_toml_has_them() -> None:
    typed = ["clusters.grain=half", "clusters.keep_massive=true", "readout.top=3"]
    found = apply_settings({"clusters": {}, "readout": {"tokens_before": 2}}, typed)
    assert found == {"clusters": {"grain": "half", "keep_massive": True}, "readout": {"tokens_before": 2, "top": 3}}
    with pytest.raises(RheoscopeError, match=r"expected ANALYSIS\.SETTING=VALUE"):
        apply_settings({"clusters": {}}, ["grain=half"])


def test_a_broken_toml_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("texts = [")
    with pytest.raises(RheoscopeError, match="cannot read"):
        settings_from_toml(tmp_path / "job.toml")
