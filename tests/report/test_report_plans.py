"""The table of commands: what each one asks and tells, and any analysis as a command."""

import numpy as np
import pytest

import rheoscope as rs
from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from rheoscope.covers.agreement.analysis import AGREEMENT
from rheoscope.picture.blocks import Lines, Table
from rheoscope.report.report_plans import REPORTS, ReportPlan, report_of_analysis, text_analyses
from rheoscope.report.verdicts import QUESTIONS
from rheoscope.space.results import Results
from tests.report.cases import TEXT, answered, model, small, told


def empty() -> Results:
    return Results(model().view, model().token_strings, None)


def test_the_main_job_asks_every_analysis_of_a_text_that_is_not_dear() -> None:
    cheap = {
        name
        for name in ANALYSIS_MODULES
        if analysis_by_name(name).needs in ("trace", "view") and not analysis_by_name(name).expensive
    }
    assert set(text_analyses()) == cheap | {"head_types"} | {name for one in QUESTIONS for name in one.needs}
    assert len(text_analyses()) == len(set(text_analyses()))
    assert set(told().datasets) == set(text_analyses())
    assert not told().skipped
    assert told().datasets["agreement"].attrs["draws"] == AGREEMENT.report["draws"]


def test_the_space_is_asked_of_all_that_have_one() -> None:
    for one in REPORTS["flow"].requests({"space": "sphere"}):
        if one.name in ("distorted_pairs", "score_attribution"):
            continue  # settings that stand on what came before
        settings = one.settings_by_key(told())[one.name]
        assert (settings.get("space") == "sphere") == ("space" in analysis_by_name(one.name).settings), one.name


def test_pictures_of_one_head_are_of_the_heads_that_agreement_picks() -> None:
    own = told().datasets["agreement"]
    torn, why = (told().datasets[name].attrs for name in ("distorted_pairs", "score_attribution"))
    assert (torn["layer"], torn["head"]) == np.unravel_index(int(own.agreement.values.argmin()), own.agreement.shape)
    assert (why["layer"], why["head"]) == np.unravel_index(int(own.z.values.argmax()), own.z.shape)


def test_a_text_too_short_for_agreement_says_why_and_has_the_rest() -> None:
    short = told("The keys to the old")
    assert short.reason("agreement").startswith("agreement needs a query with at least 8 other keys")
    for name in ("distorted_pairs", "score_attribution"):
        assert short.reason(name) == "agreement has no result, so no head can be picked"
    assert {"head_types", "trajectory", "geometry_kept", "purity"} <= set(short.datasets)


def test_a_model_that_cannot_read_the_probe_has_no_types_and_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(model: object, trace: object = None) -> None:
        raise rs.RheoscopeError("the probe has 2 tokens or more")

    monkeypatch.setitem(vars(analysis_by_name("head_types")), "ask", refuse)  # a frozen value
    told_so = answered(REPORTS["covers"], draws=2, of=small())
    assert told_so.reasons == {"head_types": "the probe has 2 tokens or more"}
    table = REPORTS["covers"].sections[0].blocks(told_so)[0]
    assert isinstance(table, Table)
    assert [row[-1].text for row in table.rows] == [""] * 3


@pytest.mark.parametrize("name", REPORTS)
def test_no_job_tells_of_what_has_no_answer(name: str) -> None:
    """What is told first can be told of nothing; `must` is the analysis without which no command goes on."""
    job = REPORTS[name]
    tables = [block for one in job.sections for block in one.blocks(empty()) if isinstance(block, Table)]
    assert tables == []


@pytest.mark.parametrize("name", REPORTS)
def test_what_is_told_is_asked(name: str) -> None:
    job = REPORTS[name]
    asks = [one.name for one in (*job.requests({"text": TEXT}), *job.file_requests({}))]
    for one in job.sections:
        assert set(one.needs) <= set(asks)
    assert job.required in {*asks, ""}
    assert all(one in ANALYSIS_MODULES for one in asks)


def test_findings_are_not_told_without_nulls() -> None:
    quick = answered(REPORTS["covers"], fast=True)
    (block,) = REPORTS["covers"].sections[1].blocks(quick)
    assert isinstance(block, Lines)
    assert block.lines == ["Nothing was tested: nulls are left out (--fast)."]


def test_titles_name_the_command_and_the_text() -> None:
    assert REPORTS["flow"].title(told()) == TEXT[:89].rstrip() + "…"
    assert REPORTS["covers"].title(told("a b")) == "Covers: a b"
    assert REPORTS["operators"].title(empty()) == "Operators of the default model"
    assert report_of_analysis("operators").title(empty()) == "operators: the default model"


@pytest.mark.parametrize("name", ["trajectory", "operators", "massive_tokens", "surgery"])
def test_any_analysis_is_a_job(name: str) -> None:
    job: ReportPlan = report_of_analysis(name)
    answers = answered(job, TEXT)
    assert list(answers.datasets) == [name]
    assert job.required == name
    blocks = [block for one in job.sections for block in one.blocks(answers)]
    assert any(isinstance(block, Table) and block.heading.startswith(f"{name} by ") for block in blocks)
