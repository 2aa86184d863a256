"""The plans of reports: the analyses that they run and the sections that they show."""

from dataclasses import replace

import numpy as np
import pytest

import rheoscope as rs
from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from rheoscope.covers.agreement.analysis import AGREEMENT
from rheoscope.picture.blocks import Lines, Table
from rheoscope.report.report_plan import ReportPlan
from rheoscope.report.report_plans import REPORTS, report_of_analysis
from rheoscope.report.report_sections import text_analyses
from rheoscope.report.story import STORY_ANALYSES
from rheoscope.space.results import Results
from tests.report.cases import SHORT_TEXT, TEXT, flow_results, model, report_results, small


def empty() -> Results:
    return Results(model().view, model().token_strings, None)


def test_the_flow_report_runs_every_inexpensive_analysis_of_a_text() -> None:
    cheap = {
        name
        for name in ANALYSIS_MODULES
        if analysis_by_name(name).needs in ("trace", "view") and not analysis_by_name(name).expensive
    }
    assert set(text_analyses()) == cheap | set(STORY_ANALYSES)
    assert len(text_analyses()) == len(set(text_analyses()))
    assert set(flow_results().datasets) == set(text_analyses())
    assert not flow_results().skipped
    assert flow_results().datasets["agreement"].attrs["draws"] == AGREEMENT.report["draws"]


def test_without_files_only_the_analyses_of_the_story_run() -> None:
    assert [item.name for item in REPORTS["flow"].requests({})] == list(STORY_ANALYSES)
    everything = [item.name for item in REPORTS["flow"].all_requests({})]
    assert everything == text_analyses()


def test_the_space_is_passed_to_all_analyses_that_have_it() -> None:
    for item in REPORTS["flow"].all_requests({"space": "sphere"}):
        if item.name in ("distorted_pairs", "score_attribution"):
            continue  # settings that stand on what came before
        settings = item.settings_by_key(flow_results())[item.name]
        assert (settings.get("space") == "sphere") == ("space" in analysis_by_name(item.name).settings), item.name


def test_agreement_picks_the_heads_of_single_head_pictures() -> None:
    own = flow_results().datasets["agreement"]
    pair_attributes, score_attributes = (
        flow_results().datasets[name].attrs for name in ("distorted_pairs", "score_attribution")
    )
    assert (pair_attributes["layer"], pair_attributes["head"]) == np.unravel_index(
        int(own.agreement.values.argmin()), own.agreement.shape
    )
    assert (score_attributes["layer"], score_attributes["head"]) == np.unravel_index(
        int(own.z.values.argmax()), own.z.shape
    )


def test_a_text_too_short_for_agreement_has_all_other_results() -> None:
    short = flow_results(SHORT_TEXT)
    assert short.reason("agreement").startswith("agreement needs a query with at least 8 other keys")
    for name in ("distorted_pairs", "score_attribution"):
        assert short.reason(name) == "agreement has no result, so no head can be picked"
    assert {"head_types", "trajectory", "geometry_kept", "purity"} <= set(short.datasets)


def test_without_head_types_the_other_results_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(model: object, trace: object = None) -> None:
        raise rs.RheoscopeError("the probe has 2 tokens or more")

    monkeypatch.setitem(vars(analysis_by_name("head_types")), "ask", refuse)  # a frozen value
    results = report_results(REPORTS["covers"], draws=2, of=small())
    assert results.reasons == {"head_types": "the probe has 2 tokens or more"}
    table = REPORTS["covers"].sections[0].blocks(results)[0]
    assert isinstance(table, Table)
    assert [row[-1].text for row in table.rows] == [""] * 3


@pytest.mark.parametrize("name", REPORTS)
def test_no_section_shows_a_table_without_results(name: str) -> None:
    """Without results there is no table."""
    plan = REPORTS[name]
    tables = [block for item in plan.sections for block in item.blocks(empty()) if isinstance(block, Table)]
    assert tables == []


@pytest.mark.parametrize("name", REPORTS)
def test_sections_need_only_analyses_that_run(name: str) -> None:
    plan = REPORTS[name]
    asks = [item.name for item in (*plan.requests({"text": TEXT, "edges": 2}), *plan.file_requests({}))]
    for item in plan.sections:
        assert set(item.needs) <= set(asks)
    assert plan.required in {*asks, ""}
    assert all(item in ANALYSIS_MODULES for item in asks)


def test_there_are_no_findings_without_nulls() -> None:
    quick = report_results(REPORTS["covers"], fast=True, of=small())
    (block,) = REPORTS["covers"].sections[1].blocks(quick)
    assert isinstance(block, Lines)
    assert block.lines == ["Nothing was tested: null distributions were not drawn (--fast)."]


def test_titles_name_the_command_and_the_text() -> None:
    long_text = f"{TEXT} {TEXT}"
    long_trace = replace(flow_results().required_trace, text=long_text)
    assert REPORTS["flow"].title(replace(flow_results(), trace=long_trace)) == long_text[:89].rstrip() + "…"
    assert REPORTS["covers"].title(flow_results(SHORT_TEXT)) == f"Covers: {SHORT_TEXT}"
    assert REPORTS["operators"].title(empty()) == "Operators of the default model"
    assert report_of_analysis("operators").title(empty()) == "operators: the default model"


@pytest.mark.parametrize("name", ["trajectory", "operators", "massive_tokens", "surgery"])
def test_any_analysis_has_a_report(name: str) -> None:
    plan: ReportPlan = report_of_analysis(name)
    results = report_results(plan, TEXT, of=small())
    assert list(results.datasets) == [name]
    assert plan.required == name
    blocks = [block for item in plan.sections for block in item.blocks(results)]
    assert any(isinstance(block, Table) and block.heading.startswith(f"{name} by ") for block in blocks)
