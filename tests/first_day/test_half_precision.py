"""Half precision, as a new user meets it: every analysis and every command in bfloat16 and float16 on the CPU."""

import copy
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rheoscope as rs
from rheoscope.catalogue import ANALYSIS_MODULES
from rheoscope.models.checkpoint import save
from rheoscope.report import analysis_runs, report_page
from rheoscope.report.analysis_runs import Subject
from rheoscope.report.report_plans import REPORTS, text_analyses
from rheoscope.space.analysis import Analysis
from tests.cases import model, network
from tests.laws.every_analysis import call
from tests.place import PLACE
from tests.report.cases import answered, small

COUNTED = {"density_clusters", "purity", "distorted_pairs", "agreement"}
"""Counts, ranks and lists of the largest: near in float16, and others where bfloat16 turns an order round."""
HALVES = [torch.bfloat16, torch.float16]
TEXT = "The keys to the cabinet are on the table in the hall"


# Every analysis


@cache
def on_the_cpu() -> Any:
    return rs.load(copy.deepcopy(network("own", torch.float64)).cpu())


@cache
def exactly(name: str) -> Any:
    return call(name)(on_the_cpu())


@pytest.mark.parametrize("dtype", HALVES if PLACE.type == "cpu" else [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("name", ANALYSIS_MODULES)
def test_every_analysis_is_as_near_as_its_dtype_allows(name: str, dtype: torch.dtype) -> None:
    """Ranks and draws jump with the last digit, so fields are judged together: by the middle one of their deviations."""
    found, full = call(name)(model("own", dtype)), exactly(name)
    fields = [field for field in found.data_vars if found[field].dtype.kind == "f"]
    assert all(found[field].dtype.itemsize >= 4 for field in fields)
    assert {str(x) for x in found.data_vars} == {str(x) for x in full.data_vars}
    if name in COUNTED and dtype is torch.bfloat16:
        return
    off = [deviation(found[field].values, full[field].values) for field in fields]
    assert np.nanmedian([x for x in off if x is not None]) <= max(0.04, 20 * torch.finfo(dtype).eps)


def deviation(found: Any, full: Any) -> float | None:
    """The largest difference beside the largest number; None where there is none to compare."""
    there = np.isfinite(full)
    return None if not there.any() else float(np.abs(found - full)[there].max() / max(np.abs(full[there]).max(), 1e-30))


# A model as transformers gives it


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_model_of_transformers_is_taken_in_the_dtype_of_its_checkpoint(dtype: torch.dtype, tmp_path: Path) -> None:
    import transformers as hf

    made = hf.LlamaForCausalLM(network("llama").config).to(dtype)
    made.save_pretrained(tmp_path)
    found = hf.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    loaded = rs.load(found)
    assert loaded.view.facts["dtype"] == str(dtype).removeprefix("torch.")
    assert torch.equal(loaded.run([5, 6, 7]), found(torch.tensor([[5, 6, 7]])).logits[0])


def test_tokens_as_long_as_trained_ones_are_do_not_overflow_float16() -> None:
    """The squares of a massive token's coordinates lie beyond 65504: in float16 its norm would be infinite."""
    net = copy.deepcopy(network("llama"))
    with torch.no_grad():
        net.model.embed_tokens.weight[5] *= 3000
    certificate = rs.load(net, dtype="float16").view.facts["certificate"]
    assert certificate.operators_error < 1e-3


EXACT = {
    "float32": "exact on 8 tokens in float32: weights off by ",
    "bfloat16": "exact up to the rounding of bfloat16 (7.8e-03) on 8 tokens: weights off by ",
    "float16": "exact up to the rounding of float16 (9.8e-04) on 8 tokens: weights off by ",
}


@pytest.mark.parametrize("dtype", EXACT)
def test_the_certificate_says_in_which_sense_it_is_exact(dtype: str) -> None:
    assert str(model("own", getattr(torch, dtype)).view.facts["certificate"]).startswith(EXACT[dtype])


# Every command


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with a tokenizer, as a directory."""
    path = tmp_path_factory.mktemp("models") / "small"
    save(small().network, path, small().tokenizer)
    return path


def typed(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The command, in this process; its exit status."""
    from rheoscope.commands.app import main

    monkeypatch.setattr(sys, "argv", ["rheoscope", *words])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


COMMANDS = [
    ("flow", TEXT, "--fast", "--html", "r.html"),
    ("operators", "--text", TEXT, "--json", "o.json"),
    ("covers", TEXT, "--fast"),
    ("surgery", TEXT, "--heads", "1.0", "--M", "symmetric", "--F", "rank 2"),
    ("surgery", TEXT, "--heads", "1.0", "--M", "rank 2", "--each"),
    ("reverse", TEXT),
    ("analyse", "fixed_point", TEXT, "--layers", "1", "--iterations", "3"),
]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:1]))
def test_every_command_works(
    words: tuple[str, ...], dtype: str, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert typed(monkeypatch, *words, "--model", str(saved), "--dtype", dtype) == 0
    said = capsys.readouterr().out
    assert f"exact up to the rounding of {dtype}" in " ".join(said.split())
    assert "internal error" not in said


# An analysis that fails


def failing(name: str) -> Any:
    """The catalogue with one analysis that ends in an error of torch."""
    own = analysis_runs.analysis_by_name

    def of(asked: str) -> Analysis:
        one = own(asked)
        if asked != name:
            return one

        def fail(trace: Any, **settings: Any) -> Any:
            raise RuntimeError("expected m1 and m2 to have the same dtype\n  but got: float != c10::Half")

        return Analysis(one.name, one.question, fail, one.needs, one.fields)

    return of


def test_an_analysis_that_fails_takes_no_other_with_it(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(analysis_runs, "analysis_by_name", failing("energy"))
    monkeypatch.chdir(tmp_path)
    status = typed(monkeypatch, TEXT, "-m", str(saved), "--fast", "--html", "r.html", "--json", "r.json")
    said = capsys.readouterr()
    assert status == 1
    line = "internal error (RuntimeError: expected m1 and m2 to have the same dtype but got: float != c10::Half)"
    assert said.err.startswith(
        f"rheoscope: energy failed: {line}; please report it; all other results were printed and written"
    )
    assert said.err.count("\n") == 1
    assert f"energy was skipped: {line}" in " ".join(said.out.split())
    assert f"energy was skipped: {line}" in Path("r.html").read_text()
    numbers = json.loads(Path("r.json").read_text())
    assert "energy" not in numbers
    assert {"trajectory", "transport", "agreement", "operators"} <= {*numbers}


def test_a_command_of_one_analysis_that_fails_is_one_line(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(analysis_runs, "analysis_by_name", failing("energy"))
    assert typed(monkeypatch, "analyse", "energy", TEXT, "-m", str(saved)) == 1
    said = capsys.readouterr().err
    assert said.startswith("rheoscope: internal error (RuntimeError: expected m1")
    assert said.count("\n") == 1


def test_a_report_names_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(subject: Subject, asks: Any) -> Any:
        return analysis_runs.empty_results(subject, draw_nulls=True).with_failure("clusters", RuntimeError("no\nmore"))

    monkeypatch.setattr(report_page, "run_analyses", nothing)
    monkeypatch.setattr(report_page, "REPORTS", {"flow": REPORTS["operators"]})
    said = rs.save_report(small(), small().trace(TEXT), tmp_path / "r.html")
    assert said.startswith("wrote ")
    assert said.endswith("; clusters failed: internal error (RuntimeError: no more); please report it")


def test_every_sentence_can_do_without_any_one_analysis() -> None:
    answers = answered(REPORTS["flow"], TEXT, fast=True, of=small())
    for name in text_analyses():
        without = Subject(small(), TEXT, small().trace(TEXT))
        found = {key: one for key, one in answers.datasets.items() if key.split()[0] != name}
        lacking = analysis_runs.replace(
            analysis_runs.empty_results(without, draw_nulls=False), datasets=found
        ).with_failure(name, RuntimeError("no"))
        for one in REPORTS["flow"].sections:
            one.blocks(lacking)


def test_a_control_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Subject:
        raise RuntimeError("no weights")

    subject = Subject(small(), TEXT, small().trace(TEXT))
    found = analysis_runs.run_analyses(
        subject, [analysis_runs.Request("clusters"), analysis_runs.Request("trajectory")], controls=[broken]
    )
    assert {*found.datasets} == {"clusters", "trajectory"}
    assert found.failed_keys == ("untrained control",)
