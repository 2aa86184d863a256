"""The seven questions answer yes, no and unclear on planted results, with the number and its null."""

import math

import pytest
import xarray as xr

import rheoscope as rs
from rheoscope.report.analysis_runs import Subject, run_analyses
from rheoscope.report.findings import FAMILY_SIZE, N_VERDICT_STATEMENTS
from rheoscope.report.report_plans import REPORTS
from rheoscope.report.verdicts import QUESTIONS, verdicts_dataset
from rheoscope.space.results import Results
from rheoscope.statistics.verdict import NO, UNCLEAR, YES, Verdict
from tests.report import planted
from tests.report.cases import model

CONTROLS = [{"clusters": planted.clusters(29.9 + 0.1 * index)} for index in range(4)]
QUESTION_BY_NAME = {item.name: item for item in QUESTIONS}


def verdict(name: str, *controls: dict[str, xr.Dataset], **datasets: xr.Dataset) -> Verdict:
    return QUESTION_BY_NAME[name].verdict(planted.results(datasets, controls))


@pytest.mark.parametrize(
    ("name", "yes", "no"),
    [
        ("similarity", {"agreement": planted.agreement(0.3)}, {"agreement": planted.agreement(0.01)}),
        ("similarity", {"agreement": planted.agreement(0.3)}, {"agreement": planted.agreement(-0.3)}),
        ("deformation", {"distortion": planted.distortion(0.4)}, {"distortion": planted.distortion(0.61)}),
        ("gradient", {"energy": planted.energy(0.2)}, {"energy": planted.energy(0.001)}),
        ("convergence", {"fixed_point": planted.fixed_point(0.8)}, {"fixed_point": planted.fixed_point(1.2)}),
        ("prediction", {"readout": planted.readout(-4.0)}, {"readout": planted.readout(-8.02)}),
    ],
)
def test_planted_effects_are_answered_yes_and_their_absence_no(
    name: str, yes: dict[str, xr.Dataset], no: dict[str, xr.Dataset]
) -> None:
    assert (verdict(name, **yes).answer, verdict(name, **no).answer) == (YES, NO)


def test_identity_verdict_reports_where_tokens_go() -> None:
    assert verdict("identity", transport=planted.transport(0.05, 0.45)).answer == "no · to the next token"
    assert verdict("identity", transport=planted.transport(0.98, 0.03)).answer == "yes · destination unclear"
    line = verdict("identity", {"transport": planted.transport(1, 0.004)}, transport=planted.transport(0.05, 0.45)).line
    assert "It moves .45 to where their own token comes next (null .03 ± .01; untrained .00)" in line
    assert "Similarity to the own token 1.00 → .00, to the next token .00 → .20" in line


def test_meaning_verdict_compares_with_untrained_controls_and_stems() -> None:
    few = {"clusters": planted.clusters(9.0, 40), "purity": planted.purity(0.0005)}
    assert verdict("meaning", *CONTROLS, **few).answer == YES
    assert "52 clusters at the embedding and 40 at the end; untrained 50" in verdict("meaning", *CONTROLS, **few).line
    scattered = {"clusters": planted.clusters(60.0, 53), "purity": planted.purity(0.6)}
    assert verdict("meaning", *CONTROLS, **scattered).answer == NO
    assert "and 53 at the end" in verdict("meaning", *CONTROLS, **scattered).line
    assert (
        verdict("meaning", *CONTROLS, clusters=few["clusters"], purity=planted.purity(0.0005, pairs=1)).answer
        == "yes · unclear"
    )
    as_before = planted.purity(0.0005, before=0.9)
    assert verdict("meaning", *CONTROLS, clusters=few["clusters"], purity=as_before).answer == "yes · no"
    assert verdict("meaning", **few).answer == "unclear · yes"  # no control, no word of what training made


def test_a_wide_null_gives_unclear() -> None:
    wide = planted.agreement(0.1)
    wide["mean_agreement_null_draws"] = 9 * wide.mean_agreement_null_draws
    assert verdict("similarity", agreement=wide).answer == UNCLEAR
    assert verdict("convergence", fixed_point=planted.fixed_point(1.0, 0.1)).answer == UNCLEAR


def test_missing_results_give_unclear() -> None:
    nothing = planted.results({}).with_failure("agreement", rs.RheoscopeError("the text is too short"))
    assert (
        QUESTION_BY_NAME["similarity"].verdict(nothing).answer,
        QUESTION_BY_NAME["similarity"].verdict(nothing).line,
    ) == (
        UNCLEAR,
        "the text is too short",
    )
    fast = Results(
        nothing.view, nothing.token_strings, nothing.trace, {"agreement": planted.agreement(0.3)}, has_nulls=False
    )
    assert QUESTION_BY_NAME["similarity"].verdict(fast).answer == UNCLEAR


def test_every_statement_is_corrected_for_the_family() -> None:
    datasets = {
        "agreement": planted.agreement(0.3), "distortion": planted.distortion(0.4), "energy": planted.energy(0.2),
        "transport": planted.transport(0.1, 0.4), "clusters": planted.clusters(9), "purity": planted.purity(0.01),
        "fixed_point": planted.fixed_point(0.9), "readout": planted.readout(-4),
    }  # fmt: skip
    verdicts = verdicts_dataset(planted.results(datasets, CONTROLS))
    assert verdicts.sizes == {"question": 7, "statement": N_VERDICT_STATEMENTS}
    assert all(
        math.isclose(q, min(1, p * FAMILY_SIZE)) for p, q in zip(verdicts.p.values, verdicts.q.values, strict=True)
    )


def test_the_default_model_answers_all_questions() -> None:
    model = rs.load()
    verdicts = rs.verdicts(model, model.trace("The keys to the cabinet are on the table"))
    assert verdicts.attrs["controls"] == 0
    assert all(answer.split(" · ")[0] in (YES, NO, UNCLEAR) for answer in verdicts.answer.values.tolist())
    with pytest.raises(rs.RheoscopeError, match="comes from weights"):
        rs.verdicts(rs.load(untrained=True), model.trace("a b"))


def test_short_texts_have_too_few_permutations_for_significance() -> None:
    needed = {name for question in ("identity", "prediction") for name in QUESTION_BY_NAME[question].needs}
    requests = [item for item in REPORTS["flow"].requests({}) if item.name in needed]
    results = run_analyses(Subject(model(), "Hello world", model().trace("Hello world")), requests)
    verdicts = {item.name: item.verdict(results) for item in QUESTIONS}
    assert "to the next token" not in verdicts["identity"].answer
    assert verdicts["prediction"].answer != YES
