"""Seven questions: each answers yes, no and unclear where that is planted, and says so with its number and its null."""

import math

import pytest
import xarray as xr

import rheoscope as rs
from rheoscope.report.findings import FAMILY_SIZE, N_VERDICT_STATEMENTS
from rheoscope.report.report_plans import REPORTS
from rheoscope.report.verdicts import QUESTIONS, verdicts_dataset
from rheoscope.space.results import Results
from rheoscope.statistics.verdict import NO, UNCLEAR, YES, Verdict
from tests.report import planted
from tests.report.cases import answered

CONTROLS = [{"clusters": planted.clusters(29.9 + 0.1 * at)} for at in range(4)]
ASKED = {one.name: one for one in QUESTIONS}


def verdict(name: str, *controls: dict[str, xr.Dataset], **found: xr.Dataset) -> Verdict:
    return ASKED[name].verdict(planted.answers(found, controls))


@pytest.mark.parametrize(
    ("name", "yes", "no"),
    [
        ("similarity", {"agreement": planted.agreement(0.3)}, {"agreement": planted.agreement(0.01)}),
        ("similarity", {"agreement": planted.agreement(0.3)}, {"agreement": planted.agreement(-0.3)}),
        ("deformation", {"distortion": planted.distortion(0.4)}, {"distortion": planted.distortion(0.61)}),
        ("gradient", {"energy": planted.energy(0.2)}, {"energy": planted.energy(0.001)}),
        ("settling", {"fixed_point": planted.fixed_point(0.8)}, {"fixed_point": planted.fixed_point(1.2)}),
        ("prediction", {"readout": planted.readout(-4.0)}, {"readout": planted.readout(-8.02)}),
    ],
)
def test_what_is_planted_is_answered(name: str, yes: dict[str, xr.Dataset], no: dict[str, xr.Dataset]) -> None:
    assert (verdict(name, **yes).answer, verdict(name, **no).answer) == (YES, NO)


def test_tokens_stay_or_go_to_what_comes_next() -> None:
    assert verdict("identity", transport=planted.transport(0.05, 0.45)).answer == "no · to the next token"
    assert verdict("identity", transport=planted.transport(0.98, 0.03)).answer == "yes · destination unclear"
    line = verdict("identity", {"transport": planted.transport(1, 0.004)}, transport=planted.transport(0.05, 0.45)).line
    assert "It moves .45 to where their own token comes next (null .03 ± .01; untrained .00)" in line
    assert "Similarity to the own token 1.00 → .00, to the next token .00 → .20" in line


def test_tokens_gather_beyond_the_architecture_and_by_meaning() -> None:
    few = {"clusters": planted.clusters(9.0, 40), "purity": planted.purity(0.0005)}
    assert verdict("meaning", *CONTROLS, **few).answer == YES
    assert "52 clusters at the embedding and 40 at the end; untrained 50" in verdict("meaning", *CONTROLS, **few).line
    many = {"clusters": planted.clusters(60.0, 53), "purity": planted.purity(0.6)}
    assert verdict("meaning", *CONTROLS, **many).answer == NO
    assert "and 53 at the end" in verdict("meaning", *CONTROLS, **many).line
    assert (
        verdict("meaning", *CONTROLS, clusters=few["clusters"], purity=planted.purity(0.0005, pairs=1)).answer
        == "yes · unclear"
    )
    as_before = planted.purity(0.0005, before=0.9)
    assert verdict("meaning", *CONTROLS, clusters=few["clusters"], purity=as_before).answer == "yes · no"
    assert verdict("meaning", **few).answer == "unclear · yes"  # no control, no word of what training made


def test_a_wide_null_denies_nothing() -> None:
    wide = planted.agreement(0.1)
    wide["mean_agreement_null_draws"] = 9 * wide.mean_agreement_null_draws
    assert verdict("similarity", agreement=wide).answer == UNCLEAR
    assert verdict("settling", fixed_point=planted.fixed_point(1.0, 0.1)).answer == UNCLEAR


def test_what_was_not_measured_is_not_answered() -> None:
    nothing = planted.answers({}).with_failure("agreement", rs.RheoscopeError("the text is too short"))
    assert (ASKED["similarity"].verdict(nothing).answer, ASKED["similarity"].verdict(nothing).line) == (
        UNCLEAR,
        "the text is too short",
    )
    fast = Results(
        nothing.view, nothing.token_strings, nothing.trace, {"agreement": planted.agreement(0.3)}, has_nulls=False
    )
    assert ASKED["similarity"].verdict(fast).answer == UNCLEAR


def test_every_statement_of_the_questions_pays_for_the_family() -> None:
    found = {
        "agreement": planted.agreement(0.3), "distortion": planted.distortion(0.4), "energy": planted.energy(0.2),
        "transport": planted.transport(0.1, 0.4), "clusters": planted.clusters(9), "purity": planted.purity(0.01),
        "fixed_point": planted.fixed_point(0.9), "readout": planted.readout(-4),
    }  # fmt: skip
    told = verdicts_dataset(planted.answers(found, CONTROLS))
    assert told.sizes == {"question": 7, "statement": N_VERDICT_STATEMENTS}
    assert all(math.isclose(q, min(1, p * FAMILY_SIZE)) for p, q in zip(told.p.values, told.q.values, strict=True))


def test_the_model_that_ships_answers_all_seven() -> None:
    model = rs.load()
    told = rs.verdicts(model, model.trace("The keys to the cabinet are on the table, and the table stands in the hall"))
    assert told.attrs["controls"] == 0
    assert all(answer.split(" · ")[0] in (YES, NO, UNCLEAR) for answer in told.answer.values.tolist())
    with pytest.raises(rs.RheoscopeError, match="comes from weights"):
        rs.verdicts(rs.load(untrained=True), model.trace("a b"))


def test_a_text_of_a_few_tokens_has_too_few_orders_to_be_sure_of_one() -> None:
    answers = answered(REPORTS["flow"], "Hello world")
    told = {one.name: one.verdict(answers) for one in QUESTIONS}
    assert "to the next token" not in told["identity"].answer
    assert told["prediction"].answer != YES
