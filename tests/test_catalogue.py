"""One table of analyses, and all that follows from it: a toy of one file and one line is found everywhere."""

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
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """One file, one line."""
    (tmp_path / "toy_radius_file.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(ANALYSIS_MODULES, "toy_radius", "toy_radius_file")
    yield "toy_radius"
    vars(rs).pop("toy_radius", None)
    sys.modules.pop("toy_radius_file", None)


def typed(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """The command, in this process."""
    from rheoscope.commands.app import main

    monkeypatch.setattr(sys, "argv", ["rheoscope", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code


def test_a_toy_has_its_name_its_row_and_its_place_in_every_list(toy: str) -> None:
    assert rs.toy_radius(model().trace(TEXT)).radius.dims == ("point",)
    assert rs.analyses().loc[toy, "question"] == "How wide is the cloud after every layer?"
    assert toy in dir(rs)
    assert toy in rs.__all__
    assert "How wide is the cloud after every layer?" in rs.__doc__
    assert f"| `{toy}` |" in catalogue_table()
    assert "mean distance of the tokens from the mean of their cloud" in catalogue_page()


def test_a_toy_has_a_command_and_files(
    toy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    typed(monkeypatch, "analyses")
    assert toy in capsys.readouterr().out
    files = ("--json", "toy.json", "--csv", "tables", "--html", "toy.html")
    typed(monkeypatch, "analyse", toy, TEXT, "--share", "0.5", *files)
    said = capsys.readouterr().out
    assert "L5.resid_post" in said
    found = json.loads((tmp_path / "toy.json").read_text())[toy]["data_vars"]["radius"]["data"]
    assert np.allclose(found, 0.5 * rs.toy_radius(model().trace(TEXT)).radius.values)
    assert {file.name for file in (tmp_path / "tables").iterdir()} == {
        f"{toy}.point.csv",
        "definitions.csv",
        "provenance.csv",
    }
    assert "<svg" in (tmp_path / "toy.html").read_text()


def test_a_toy_is_drawn_in_all_hands_and_stands_in_the_report(toy: str, tmp_path: Path) -> None:
    from rheoscope.report.draw_result import picture_of

    found = rs.toy_radius(model().trace(TEXT))
    check_all_renderers(picture_of(found))
    rs.save_report(small(), small().trace(TEXT), tmp_path / "report.html")
    assert picture_of(found).title in (tmp_path / "report.html").read_text()


def test_a_toy_is_in_the_gauge_battery(toy: str) -> None:
    call = battery.calls()[toy]
    battery.assert_unchanged(call, call(double("llama")), "llama", battery.gauges("llama"))


# What holds for every row


@pytest.mark.parametrize("name", ANALYSIS_MODULES)
def test_an_analysis_can_be_asked_of_its_subject_alone(name: str) -> None:
    one = analysis_by_name(name)
    parameters = list(inspect.signature(one.ask).parameters.values())
    subjects = [parameter.name for parameter in parameters if parameter.name in SUBJECTS]
    assert [parameter.name for parameter in parameters][: len(subjects)] == subjects
    assert all(parameter.default is not inspect.Parameter.empty for parameter in parameters[len(subjects) :])
    assert {"view": {"view"}, "trace": {"trace"}}.get(one.needs, {"model", *subjects}) == set(subjects)
    assert one.name == name
    assert one.question.endswith(("?", ")"))
    assert (inspect.getdoc(one.ask) or "").count(">>>") >= 2


@pytest.mark.parametrize("name", ANALYSIS_MODULES)
def test_every_field_of_an_answer_is_declared(name: str) -> None:
    """As it is, with its axes; a null is a field of the same answer, and says what it is of."""
    one, found = analysis_by_name(name), battery.call(name)(double("llama"))
    for field, x in found.data_vars.items():
        declared = one.fields[str(field)]
        assert set(x.dims) - {"head"} == set(declared.dims) - {"head"}
        assert x.attrs["definition"] == declared.definition
    for field in one.fields.values():
        assert {field.null, field.null_sd} <= {*one.fields, ""}
        assert field.definition


WORDS = {"k", "n", "position", "answer", "query", "answers"}
"""What settings are not called: they have one word each."""


@pytest.mark.parametrize("name", ANALYSIS_MODULES)
def test_settings_have_one_word_each(name: str) -> None:
    settings = analysis_by_name(name).settings
    wrong = {word for word in settings if word in WORDS}
    assert wrong <= ({"query"} if name == "score_attribution" else set())  # a score has a query and a key


# No number is made of two models


def with_model_and_trace() -> list[str]:
    return [name for name in ANALYSIS_MODULES if {"model", "trace"} <= set(analysis_by_name(name).subjects)]


@pytest.mark.parametrize("name", ANALYSIS_MODULES)
def test_no_setting_has_the_name_of_an_option_that_every_command_has(name: str) -> None:
    assert not set(typeable_options(analysis_by_name(name))) & set(COMMON_OPTIONS)


@pytest.mark.parametrize("name", ANALYSIS_MODULES)
def test_no_analysis_takes_a_view_beside_a_trace(name: str) -> None:
    assert not {"view", "trace"} <= set(analysis_by_name(name).subjects)
    assert not {"view"} & set(analysis_by_name(name).settings)


@pytest.mark.parametrize("name", with_model_and_trace())
def test_a_trace_of_other_weights_is_refused(name: str) -> None:
    one, other = double("gpt2"), double("gpt2_by_depth")
    with pytest.raises(RheoscopeError, match="this trace comes from weights"):
        analysis_by_name(name).ask(one, other.trace(text()))


def test_functions_that_take_both_refuse_them_too() -> None:
    one, other = double("gpt2"), double("gpt2_by_depth")
    with pytest.raises(RheoscopeError, match="this trace comes from weights"):
        rs.reversed_map(one, other.trace(text()), 0, 0, target=7)
    with pytest.raises(RheoscopeError, match=r"weights"):
        rs.over_texts(rs.trajectory, [one.trace(text()), other.trace(text())])
    with pytest.raises(RheoscopeError, match=r"weights"):
        rs.save_report(one, other.trace(text()), "never.html")
    assert not Path("never.html").exists()


def test_a_name_that_is_not_there_is_one_line() -> None:
    with pytest.raises(RheoscopeError, match=r"there is no analysis 'nowhere'; type rs\.analyses\(\)"):
        catalogue.analysis_by_name("nowhere")
    with pytest.raises(AttributeError, match="has no attribute 'nowhere'"):
        _ = rs.nowhere


def test_the_readme_lists_what_the_catalogue_has() -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    listed = readme.split("<!-- analyses -->")[1].split("<!-- /analyses -->")[0].strip()
    assert listed == catalogue_table()
