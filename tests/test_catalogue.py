"""Tests of the catalogue: a toy analysis of one file and one line appears everywhere, and rules for every analysis."""

import inspect
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import rheoscope as rs
from rheoscope import catalogue
from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from rheoscope.commands.analysis_command import COMMON_OPTIONS
from rheoscope.report.analysis_list import catalogue_page, catalogue_table
from rheoscope.report.setting_options import typeable_options
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import SUBJECTS
from tests.cases import double, text
from tests.laws import every_analysis as battery
from tests.pictures.cases import TEXT, check_all_renderers, model
from tests.report.cases import small

TOY = '''
"""How wide is the cloud?"""

import torch

from rheoscope.flow.cloud import select_clouds
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.settings import Fraction, SpaceName


@torch.no_grad()
def toy_radius(trace, space: SpaceName = "raw", share: Fraction = 1.0, keep_massive: bool = False):
    """How wide is the cloud after every layer?"""
    seen = select_clouds(trace, space, "layer", keep_massive, min_tokens=2)
    wide = (seen.points - seen.points.mean(1, keepdim=True)).norm(dim=-1)
    return TOY_RADIUS.label({"radius": share * wide.mean(-1)}, {"point": list(seen.steps)}, seen.attributes)


TOY_RADIUS = Analysis(
    "toy_radius", "How wide is the cloud after every layer?", toy_radius, "trace",
    {"radius": Field(("point",), "mean distance of the tokens from the mean of their cloud")},
)
'''


@pytest.fixture
def toy_analysis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A toy analysis: one file, and one line in the catalogue."""
    (tmp_path / "toy_radius_file.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(ANALYSIS_MODULES, "toy_radius", "toy_radius_file")
    yield "toy_radius"
    vars(rs).pop("toy_radius", None)
    sys.modules.pop("toy_radius_file", None)


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """Run `rheoscope` with these arguments in this process."""
    from rheoscope.commands.app import run_command_line

    monkeypatch.setattr(sys, "argv", ["rheoscope", *arguments])
    assert run_command_line() == 0


def test_a_toy_is_in_every_list_of_analyses(toy_analysis: str) -> None:
    assert rs.toy_radius(model().trace(TEXT)).radius.dims == ("point",)
    assert rs.analyses().loc[toy_analysis, "question"] == "How wide is the cloud after every layer?"
    assert toy_analysis in dir(rs)
    assert toy_analysis in rs.__all__
    assert "How wide is the cloud after every layer?" in rs.__doc__
    assert f"| `{toy_analysis}` |" in catalogue_table()
    assert "mean distance of the tokens from the mean of their cloud" in catalogue_page()


def test_a_toy_has_a_command_and_files(
    toy_analysis: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    run_command(monkeypatch, "analyses")
    assert toy_analysis in capsys.readouterr().out
    files = ("--json", "toy.json", "--csv", "tables", "--html", "toy.html")
    run_command(monkeypatch, "analyse", toy_analysis, TEXT, "--share", "0.5", *files)
    output = capsys.readouterr().out
    assert "L5.resid_post" in output
    radius = json.loads((tmp_path / "toy.json").read_text())[toy_analysis]["data_vars"]["radius"]["data"]
    assert np.allclose(radius, 0.5 * rs.toy_radius(model().trace(TEXT)).radius.values)
    assert {file.name for file in (tmp_path / "tables").iterdir()} == {
        f"{toy_analysis}.point.csv",
        "definitions.csv",
        "provenance.csv",
    }
    assert "<svg" in (tmp_path / "toy.html").read_text()


def test_a_toy_is_drawn_by_all_renderers_and_is_in_the_report(toy_analysis: str, tmp_path: Path) -> None:
    from rheoscope.report.draw_result import picture_of

    result = rs.toy_radius(model().trace(TEXT))
    check_all_renderers(picture_of(result))
    rs.save_report(small(), small().trace(TEXT), tmp_path / "report.html")
    assert picture_of(result).title in (tmp_path / "report.html").read_text()


def test_a_toy_is_in_the_gauge_tests(toy_analysis: str) -> None:
    call = battery.call_of(toy_analysis)
    battery.assert_unchanged(call, call(double("llama")), "llama", battery.gauges("llama"))


# Rules for every analysis


@pytest.mark.parametrize("name", ANALYSIS_MODULES)
def test_an_analysis_needs_only_its_subject(name: str) -> None:
    analysis = analysis_by_name(name)
    parameters = list(inspect.signature(analysis.ask).parameters.values())
    subjects = [parameter.name for parameter in parameters if parameter.name in SUBJECTS]
    assert [parameter.name for parameter in parameters][: len(subjects)] == subjects
    assert all(parameter.default is not inspect.Parameter.empty for parameter in parameters[len(subjects) :])
    assert {"view": {"view"}, "trace": {"trace"}}.get(analysis.needs, {"model", *subjects}) == set(subjects)
    assert analysis.name == name
    assert analysis.question.endswith(("?", ")"))
    assert (inspect.getdoc(analysis.ask) or "").count(">>>") >= 2


@pytest.mark.parametrize("name", ANALYSIS_MODULES)
def test_every_field_of_a_result_is_declared(name: str) -> None:
    """Fields have their declared axes and definitions, and a declared null is a field of the same result."""
    analysis, result = analysis_by_name(name), battery.call(name)(double("llama"))
    for field, x in result.data_vars.items():
        declared = analysis.fields[str(field)]
        assert set(x.dims) - {"head"} == set(declared.dims) - {"head"}
        assert x.attrs["definition"] == declared.definition
    for field in analysis.fields.values():
        assert {field.null, field.null_sd} <= {*analysis.fields, ""}
        assert field.definition


RESERVED_NAMES = {"k", "n", "position", "answer", "query", "answers"}
"""Names that no setting may have, because other names have the same meaning."""
ALLOWED_SETTINGS = {
    "score_attribution": {"query"},
    "patch": {"answers"},
    "circuit": {"answers"},
    "patch_estimates": {"answers"},
}
"""A score has a query and a key. The two texts of a pair each have an answer."""


@pytest.mark.parametrize("name", ANALYSIS_MODULES)
def test_no_setting_has_a_reserved_name(name: str) -> None:
    settings = analysis_by_name(name).settings
    reserved = {setting for setting in settings if setting in RESERVED_NAMES}
    assert reserved <= ALLOWED_SETTINGS.get(name, set())


# No result mixes two models


def with_model_and_trace() -> list[str]:
    return [name for name in ANALYSIS_MODULES if {"model", "trace"} <= set(analysis_by_name(name).subjects)]


@pytest.mark.parametrize("name", ANALYSIS_MODULES)
def test_no_setting_has_the_name_of_a_common_option(name: str) -> None:
    """An analysis with a token as `target` has no option for the target text of an encoder-decoder."""
    assert not set(typeable_options(analysis_by_name(name))) & (set(COMMON_OPTIONS) - {"target"})


@pytest.mark.parametrize("name", ANALYSIS_MODULES)
def test_no_analysis_takes_both_a_view_and_a_trace(name: str) -> None:
    assert not {"view", "trace"} <= set(analysis_by_name(name).subjects)
    assert not {"view"} & set(analysis_by_name(name).settings)


@pytest.mark.parametrize("name", with_model_and_trace())
def test_a_trace_of_other_weights_is_refused(name: str) -> None:
    model, other_model = double("gpt2"), double("gpt2_by_depth")
    with pytest.raises(RheoscopeError, match="this trace comes from weights"):
        analysis_by_name(name).ask(model, other_model.trace(text()))


def test_functions_of_model_and_trace_refuse_a_trace_of_other_weights() -> None:
    model, other_model = double("gpt2"), double("gpt2_by_depth")
    with pytest.raises(RheoscopeError, match="this trace comes from weights"):
        rs.reversed_map(model, other_model.trace(text()), 0, 0, target=7)
    with pytest.raises(RheoscopeError, match=r"weights"):
        rs.over_texts(rs.trajectory, [model.trace(text()), other_model.trace(text())])
    with pytest.raises(RheoscopeError, match=r"weights"):
        rs.save_report(model, other_model.trace(text()), "never.html")
    assert not Path("never.html").exists()


def test_an_unknown_name_raises_a_one_line_error() -> None:
    with pytest.raises(RheoscopeError, match=r"there is no analysis 'nowhere'; type rs\.analyses\(\)"):
        catalogue.analysis_by_name("nowhere")
    with pytest.raises(AttributeError, match="has no attribute 'nowhere'"):
        _ = rs.nowhere
