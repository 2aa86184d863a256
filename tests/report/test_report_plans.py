"""The table of commands: what each one asks and tells, and any analysis as a command."""

import numpy as np
import pytest

import rheoscope as rs
from rheoscope.catalogue import TABLE, analysis
from rheoscope.picture.blocks import Lines, Table
from rheoscope.report.report_plans import JOBS, Job, job_of, of_a_text
from rheoscope.report.report_settings import DRAWS
from rheoscope.report.verdicts import QUESTIONS
from rheoscope.space.results import Answers
from tests.report.cases import TEXT, answered, model, small, told


def empty() -> Answers:
    return Answers(model().view, model().words, None)


def test_the_main_job_asks_every_analysis_of_a_text_that_is_not_dear() -> None:
    cheap = {name for name in TABLE if analysis(name).needs in ("trace", "view") and not analysis(name).dear}
    assert set(of_a_text()) == cheap | {"head_types"} | {name for one in QUESTIONS for name in one.needs}
    assert len(of_a_text()) == len(set(of_a_text()))
    assert set(told().found) == set(of_a_text())
    assert not told().left_out
    assert told().found["agreement"].attrs["draws"] == DRAWS


def test_the_space_is_asked_of_all_that_have_one() -> None:
    for one in JOBS["flow"].asks({"space": "sphere"}):
        if one.name in ("distorted_pairs", "score_attribution"):
            continue  # settings that stand on what came before
        settings = one.keyed(told())[one.name]
        assert (settings.get("space") == "sphere") == ("space" in analysis(one.name).settings), one.name


def test_pictures_of_one_head_are_of_the_heads_that_agreement_picks() -> None:
    own = told().found["agreement"]
    torn, why = (told().found[name].attrs for name in ("distorted_pairs", "score_attribution"))
    assert (torn["layer"], torn["head"]) == np.unravel_index(int(own.agreement.values.argmin()), own.agreement.shape)
    assert (why["layer"], why["head"]) == np.unravel_index(int(own.z.values.argmax()), own.z.shape)


def test_a_text_too_short_for_agreement_says_why_and_has_the_rest() -> None:
    short = told("The keys to the old")
    assert short.left_out["agreement"].startswith("agreement needs a query with at least 8 other keys")
    for name in ("distorted_pairs", "score_attribution"):
        assert short.left_out[name] == "it is shown of a head that agreement picks, and agreement has no answer"
    assert {"head_types", "trajectory", "geometry_kept", "purity"} <= set(short.found)


def test_a_model_that_cannot_read_the_probe_has_no_types_and_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(model: object, trace: object = None) -> None:
        raise rs.RheoscopeError("the probe has 2 tokens or more")

    monkeypatch.setitem(vars(analysis("head_types")), "ask", refuse)  # a frozen value
    told_so = answered(JOBS["covers"], draws=2, of=small())
    assert told_so.left_out == {"head_types": "the probe has 2 tokens or more"}
    table = JOBS["covers"].tells[0].blocks(told_so)[0]
    assert isinstance(table, Table)
    assert [row[-1].text for row in table.rows] == [""] * 3


@pytest.mark.parametrize("name", JOBS)
def test_no_job_tells_of_what_has_no_answer(name: str) -> None:
    """What is told first can be told of nothing; `must` is the analysis without which no command goes on."""
    job = JOBS[name]
    tables = [block for one in job.tells for block in one.blocks(empty()) if isinstance(block, Table)]
    assert tables == []


@pytest.mark.parametrize("name", JOBS)
def test_what_is_told_is_asked(name: str) -> None:
    job = JOBS[name]
    asks = [one.name for one in (*job.asks({"text": TEXT}), *job.besides({}))]
    for one in job.tells:
        assert set(one.needs) <= set(asks)
    assert job.must in {*asks, ""}
    assert all(one in TABLE for one in asks)


def test_findings_are_not_told_without_nulls() -> None:
    quick = answered(JOBS["covers"], fast=True)
    (block,) = JOBS["covers"].tells[1].blocks(quick)
    assert isinstance(block, Lines)
    assert block.lines == ["Nothing is told: nulls are left out (--fast)."]


def test_titles_name_the_command_and_the_text() -> None:
    assert JOBS["flow"].title(told()) == TEXT[:89].rstrip() + "…"
    assert JOBS["covers"].title(told("a b")) == "Covers: a b"
    assert JOBS["operators"].title(empty()) == "Operators of the default model"
    assert job_of("operators").title(empty()) == "operators: the default model"


@pytest.mark.parametrize("name", ["trajectory", "operators", "massive_tokens", "surgery"])
def test_any_analysis_is_a_job(name: str) -> None:
    job: Job = job_of(name)
    answers = answered(job, TEXT)
    assert list(answers.found) == [name]
    assert job.must == name
    blocks = [block for one in job.tells for block in one.blocks(answers)]
    assert any(isinstance(block, Table) and block.heading.startswith(f"{name} by ") for block in blocks)
