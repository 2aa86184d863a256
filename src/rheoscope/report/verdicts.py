"""Seven questions about a text in a model: an answer, the number behind it, its null and the untrained control."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message, join
from rheoscope.messages.numbers import format_number
from rheoscope.picture.token_labels import display_token, step_names
from rheoscope.report.analysis_runs import Controls, Subject, run_analyses
from rheoscope.report.findings import FAMILY_SIZE
from rheoscope.report.report_settings import report_request
from rheoscope.space.model import Model, check_same_weights
from rheoscope.space.results import Results
from rheoscope.space.trace import Trace
from rheoscope.statistics.statement import SIGNIFICANCE_LEVEL, Statement, correct_for_family, from_draws, from_moments

if TYPE_CHECKING:
    import xarray

YES, NO, UNCLEAR = Message("yes"), Message("no"), Message("unclear")
DETECTABLE_SDS = 2.5
"""Standard deviations of a null that an effect must reach to be seen in most texts: a smaller one cannot be denied."""


@dataclass(frozen=True)
class Claim:
    """A claim behind a question: whether it holds if the statement is significant, and the smallest effect of interest.

    A statement that is not significant denies the claim only if an effect of that size would have been detected.
    """

    statement: Statement
    holds: bool
    min_effect: float

    @property
    def answer(self) -> str:
        statement = self.statement
        if statement.is_significant:
            return YES if self.holds else NO
        is_detectable = math.isfinite(statement.p) and DETECTABLE_SDS * statement.spread <= self.min_effect
        return NO if is_detectable else UNCLEAR


@dataclass(frozen=True)
class Verdict:
    """A question, its answer as a word and as a sentence, and the command that shows more.

    `statements` are the tests behind it; there is none if the answer is a measured number with its error.
    """

    question: str
    answer: str
    line: str
    deeper: str
    statements: Sequence[Statement] = ()


@dataclass(frozen=True, eq=False)
class Question:
    """One of the seven questions: the analyses it needs and the function that judges their results."""

    name: str
    question: str
    needs: tuple[str, ...]
    deeper: str
    judge: Callable[[Results, "Question"], Verdict]
    required_fields: tuple[str, ...] = ()
    """Fields that the answer needs and that not every text or model has."""

    def verdict(self, results: Results) -> Verdict:
        """The answer, or the reason why there is none."""
        missing_analyses = [name for name in self.needs if not results.has(name)]
        if missing_analyses:
            return self.unclear(
                results.skipped.get(
                    missing_analyses[0], Message("{analysis} did not run", analysis=missing_analyses[0])
                )
            )
        if not results.has_nulls:
            return self.unclear(Message("null distributions were not drawn (--fast)"))
        missing_fields = [
            field for field in self.required_fields if not any(field in results.datasets[name] for name in self.needs)
        ]
        return (
            self.unclear(Message("this text in this model has no field {field}", field=missing_fields[0]))
            if missing_fields
            else self.judge(results, self)
        )

    def unclear(self, reason: str) -> Verdict:
        return Verdict(self.question, UNCLEAR, reason, self.deeper)

    def from_claims(self, claims: Sequence[Claim], line: str) -> Verdict:
        """The answers of all claims, joined; equal answers appear once."""
        claim_answers = [claim.answer for claim in claims]
        answer = claim_answers[0] if len(set(claim_answers)) == 1 else join(" · ", claim_answers)
        return Verdict(self.question, answer, line, self.deeper, [claim.statement for claim in claims])


def corrected_claim(statement: Statement, holds: bool, min_effect: float) -> Claim:
    """A claim whose statement is corrected for every test of a run."""
    return Claim(correct_for_family([statement], FAMILY_SIZE)[0], holds, min_effect)


def control_text(values: Sequence[float]) -> str:
    """The untrained controls in words; empty if there is none."""
    return Message("; untrained {value}", value=format_number(float(np.mean(values)))) if values else ""


def null_text(statement: Statement) -> str:
    """The null distribution as mean ± standard deviation."""
    if not (math.isfinite(statement.null) and math.isfinite(statement.spread)):
        return Message("unknown")
    return f"{format_number(statement.null)} ± {format_number(statement.spread)}"


# The seven


def judge_similarity(results: Results, question: Question) -> Verdict:
    agreement = results.datasets["agreement"]
    statement = from_draws("", "agreement", float(agreement.mean_agreement), agreement.mean_agreement_null_draws.values)
    significant = agreement.q_value.values <= SIGNIFICANCE_LEVEL
    n_similar, n_opposite = (
        int((significant & (sign * (agreement.agreement - agreement.null_mean).values > 0)).sum()) for sign in (1, -1)
    )
    untrained = results.control_values("agreement", lambda dataset: float(dataset.mean_agreement))
    line = Message(
        "{n_similar} of {n_heads} heads attend to similar tokens more than a random head would, {n_opposite} less "
        "(mean partial ρ = {rho}; random heads {null}{control}).",
        n_similar=n_similar,
        n_heads=significant.size,
        n_opposite=n_opposite,
        rho=format_number(statement.value),
        null=null_text(statement),
        control=control_text(untrained),
    )
    return question.from_claims([corrected_claim(statement, statement.value > statement.null, 0.05)], line)


def judge_deformation(results: Results, question: Question) -> Verdict:
    distortion = results.datasets["distortion"]
    statement = from_draws(
        "", "distortion", float(distortion.mean_rsa.mean()), distortion.mean_rsa_null_draws.mean("image").values
    )
    deformation_claim = corrected_claim(statement, statement.value < statement.null, 0.05)
    if not deformation_claim.statement.is_significant:
        comparison = Message("Projections deform distances as much as random rotations do")
    elif statement.value < statement.null:
        comparison = Message("Projections deform distances more than random rotations do")
    else:
        comparison = Message("Projections deform distances less than random rotations do")
    per_image = {
        f"as_{name}": format_number(float(distortion.mean_rsa.sel(image=name))) for name in distortion.image.values
    }
    untrained = results.control_values("distortion", lambda dataset: float(dataset.mean_rsa.mean()))
    line = Message(
        "{comparison}: distances before and after correlate by {value} (query {as_query}, key {as_key}, content {as_content}; "
        "randomly rotated heads {null}{control}).",
        comparison=comparison,
        value=format_number(statement.value),
        null=null_text(statement),
        control=control_text(untrained),
        **per_image,
    )
    return question.from_claims([deformation_claim], line)


def judge_gradient(results: Results, question: Question) -> Verdict:
    energy = results.datasets["energy"]
    cosine, null_sd = energy.cosine.values, energy.cosine_null_sd.values
    valid = np.isfinite(cosine) & (null_sd > 0)
    standard_error = float(np.sqrt((null_sd[valid] ** 2).sum())) / max(int(valid.sum()), 1)
    statement = from_moments("", "energy", float(cosine[valid].mean()), 0.0, standard_error)
    direction = Message("along") if statement.value > 0 else Message("against")
    line = Message(
        "Head updates point {direction} the gradient of their own energy (mean cosine {value}; random content {null}{control}). "
        "{n} of {n_heads} heads climb significantly.",
        direction=direction,
        value=format_number(statement.value),
        null=null_text(statement),
        control=control_text(results.control_values("energy", lambda dataset: float(dataset.cosine.mean()))),
        n=int(energy.gradient_like.sum()),
        n_heads=energy.gradient_like.size,
    )
    return question.from_claims([corrected_claim(statement, statement.value > 0, 0.05)], line)


MIN_IDENTITY_SHARE = 0.9
"""The share of tokens left in place above which the answer is yes; below one half it is no."""


def judge_identity(results: Results, question: Question) -> Verdict:
    transport = results.datasets["transport"]
    identity_share = float(transport.identity_share_strided.values[-1, -1])
    null_share = float(transport.identity_share_null_strided.values[-1, -1])
    stays_answer = YES if identity_share >= MIN_IDENTITY_SHARE else NO if identity_share <= 0.5 else UNCLEAR
    null_draws, n_permuted = (
        transport.next_type_share_null_draws.values,
        len(results.required_trace) - len(results.required_trace.massive_tokens()) - 1,
    )
    next_type_statement = from_draws(
        "", "transport", float(transport.next_type_share), null_draws, n_permuted=n_permuted
    )
    next_type_claim = corrected_claim(next_type_statement, next_type_statement.value > next_type_statement.null, 0.05)
    untrained = results.control_values("transport", lambda dataset: float(dataset.next_type_share))
    line = Message(
        "The optimal coupling from the embedding to the last layer keeps {kept} of the tokens in place "
        "(permuted displacements {kept_null}). It moves {moved} to where their own token comes next (null {null}{control}). "
        "Similarity to the own token {own}, to the next token {next}.",
        kept=format_number(identity_share),
        kept_null=format_number(null_share),
        moved=format_number(next_type_statement.value),
        null=null_text(next_type_statement),
        control=control_text(untrained),
        own=_first_to_last(transport.toward_own),
        next=_first_to_last(transport.toward_next),
    )
    destination = Message("to the next token") if next_type_claim.answer == YES else Message("destination unclear")
    answer = join(" · ", [stays_answer, destination])
    return Verdict(question.question, answer, line, question.deeper, [next_type_claim.statement])


def _first_to_last(values: "xarray.DataArray") -> str:
    return f"{format_number(float(values[0]))} → {format_number(float(values[-1]))}"


def log_rank_reduction(clusters: "xarray.Dataset") -> float:
    """Log ratio of the effective rank of token types at the embedding and at the end; negative if the rank grows."""
    rank = clusters.type_effective_rank.values
    return float(np.log(rank[0] / rank[-1]))


def judge_gathering(results: Results, question: Question) -> Verdict:
    clusters = results.datasets["clusters"]
    rank_statement = from_draws(
        "", "clusters", log_rank_reduction(clusters), results.control_values("clusters", log_rank_reduction)
    )
    counts = clusters.type_cluster_count.values
    control_note = control_text(
        results.control_values("clusters", lambda dataset: float(dataset.type_cluster_count[-1]))
    )
    cluster_line = Message(
        "{n} token types form {before} clusters at the embedding and {after} at the end{control}; effective rank {rank}.",
        n=int(clusters.type_count),
        before=int(counts[0]),
        after=int(counts[-1]),
        control=control_note,
        rank=_first_to_last(clusters.type_effective_rank),
    )
    stems = results.datasets["purity"].sel(by="stem")
    if int(stems.same_label_pairs) < MIN_STEM_PAIRS:
        rank_verdict = question.from_claims(
            [corrected_claim(rank_statement, rank_statement.value > max(0.0, rank_statement.null), 0.1)],
            join(" ", [cluster_line, Message("Too few types share a stem to test for meaning.")]),
        )
        return replace(rank_verdict, answer=join(" · ", [rank_verdict.answer, UNCLEAR]))
    value, null, null_sd, p = (
        float(stems[name][-1]) for name in ("purity", "purity_null", "purity_null_sd", "p_value")
    )
    stem_statement, purity_before = Statement("", "purity", value, null, null_sd, p), float(stems.purity[0])
    purity_line = Message(
        "Clusters share a stem by {value} (permuted names {null}, at the embedding {before}).",
        value=format_number(value),
        null=format_number(null),
        before=format_number(purity_before),
    )
    claims = [
        corrected_claim(rank_statement, rank_statement.value > max(0.0, rank_statement.null), 0.1),
        corrected_claim(stem_statement, value > max(null, purity_before), 0.05),
    ]
    return question.from_claims(claims, join(" ", [cluster_line, purity_line]))


MIN_STEM_PAIRS = 3
"""Pairs of token types that share a stem; with fewer, a single pair could decide."""


def judge_settling(results: Results, question: Question) -> Verdict:
    layers = results.datasets["fixed_point"]
    radius, error = layers.jacobian_radius.values, layers.jacobian_radius_error.values
    is_contracting, is_expanding = radius + error < 1, radius - error > 1
    answer = YES if is_contracting.all() else NO if is_expanding.any() else UNCLEAR
    control_note = control_text(
        results.control_values("fixed_point", lambda dataset: float(dataset.jacobian_radius.median()))
    )
    median_layer = int(np.argsort(radius)[len(radius) // 2])
    line = Message(
        "{n} of {n_layers} tested layers contract locally. Repeating L{layer} amplifies a small change up to {radius} ± {error} "
        "times{control}. One pass rotates tokens by {turn} rad (permuted displacements {turn_null}).",
        n=int(is_contracting.sum()),
        n_layers=len(radius),
        layer=int(layers.layer[median_layer]),
        radius=format_number(float(radius[median_layer])),
        error=format_number(float(error[median_layer])),
        control=control_note,
        turn=format_number(float(layers.rotation_angle.median())),
        turn_null=format_number(float(layers.rotation_angle_null.median())),
    )
    return Verdict(question.question, answer, line, question.deeper)


def judge_prediction(results: Results, question: Question) -> Verdict:
    lens = results.datasets["readout"]
    null_draws, n_permuted = lens.log_probability_next_null_draws.values, len(results.required_trace) - 1
    statement = from_draws("", "readout", float(lens.log_probability_next.mean()), null_draws, n_permuted=n_permuted)
    is_top_rank = lens["rank"].values == 1
    first_step = 0 if is_top_rank.all() else len(is_top_rank) - int(np.argmin(is_top_rank[::-1]))
    target_text = display_token(results.token_strings([int(lens.attrs["target"])])[0])
    contributions = lens.attribution.values
    top_component = int(np.argmax(contributions))
    logit, largest = float(lens.logit), float(contributions[top_component])
    line = Message(
        "{token} is the top prediction from {step} on (p = {probability}). {component} contributes most: {contribution} of {logit}. "
        "Mean log-probability of the text {value} nats per token (permuted next tokens {null}).",
        token=target_text,
        step=step_names([lens.point.values[min(first_step, len(is_top_rank) - 1)]])[0],
        probability=format_number(float(lens.probability[-1])),
        component=lens.component.values[top_component],
        contribution=format_number(largest),
        logit=format_number(logit),
        value=format_number(statement.value),
        null=null_text(statement),
    )
    return question.from_claims([corrected_claim(statement, statement.value > statement.null, 0.5)], line)


QUESTIONS: tuple[Question, ...] = (
    Question(
        "similarity", Message("Does attention follow similarity?"), ("agreement",), "rheoscope covers", judge_similarity
    ),
    Question(
        "deformation",
        Message("Do the projections deform the geometry?"),
        ("distortion",),
        "rheoscope analyse distortion",
        judge_deformation,
    ),
    Question(
        "gradient", Message("Do tokens move along a gradient?"), ("energy",), "rheoscope analyse energy", judge_gradient
    ),
    Question(
        "identity",
        Message("Do tokens keep their identity, and where do they go?"),
        ("transport",),
        "rheoscope analyse transport",
        judge_identity,
        ("next_type_share_null_draws",),
    ),
    Question(
        "meaning",
        Message("Do tokens form clusters, and by meaning?"),
        ("clusters", "purity"),
        "rheoscope analyse senses",
        judge_gathering,
    ),
    Question(
        "settling",
        Message("Would the layers converge if repeated?"),
        ("fixed_point",),
        "rheoscope analyse fixed_point",
        judge_settling,
        ("rotation_angle_null",),
    ),
    Question(
        "prediction",
        Message("Where does the prediction form, and which component writes it?"),
        ("readout",),
        "rheoscope reverse",
        judge_prediction,
        ("log_probability_next_null_draws",),
    ),
)
"""In the order in which they are asked."""


def verdicts(model: Model, trace: Trace, controls: Sequence[Model] = ()) -> "xarray.Dataset":
    """Seven questions to a text in a model, each answered yes, no or cannot tell.

    **Answers** what people ask attention first: does it read similarity, what do its projections do to the geometry, do tokens
    move along a gradient, must they stay themselves and where do they go, do they gather and by meaning, would the layers
    settle, where does the prediction form.

    **Gives** (question): `answer`, `line` (the number, its null and the control in words), `deeper` (what to type to see more);
    (statement): `value`, `null`, `spread`, `p`, `q` and the `analysis` that each answer rests on.

    **Takes** `controls`, models of the same architecture at initial weights; whether tokens gather can only be told beside
    three of them or more, everything else stands beside one.

    **Laws** a text of noise gets a sure statement in at most 5 of 100 cases, whatever the model; without a null there is no answer.

    **Siblings** `rs.analyses()` lists the analyses that stand behind; `rs.save_report` draws them.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> rs.verdicts(model, model.trace("The keys to the cabinet are on the table")).sizes["question"]
    7
    """
    check_same_weights(model, trace)
    text = trace.text or trace.ids
    needed_names = dict.fromkeys(name for question in QUESTIONS for name in question.needs)
    control_subjects: Controls = [
        partial(lambda control: Subject(control, text, control.trace(trace.ids)), control) for control in controls
    ]
    return verdicts_dataset(
        run_analyses(
            Subject(model, text, trace), [report_request(name) for name in needed_names], controls=control_subjects
        )
    )


def verdicts_dataset(results: Results) -> "xarray.Dataset":
    """The answers of a run as a Dataset (question), and the statements they rest on."""
    import xarray as xr

    all_verdicts = [question.verdict(results) for question in QUESTIONS]
    statements = [
        (question.name, statement)
        for question, verdict in zip(QUESTIONS, all_verdicts, strict=True)
        for statement in verdict.statements
    ]
    data = {
        name: ("question", [getattr(verdict, name) for verdict in all_verdicts])
        for name in ("answer", "line", "deeper")
    }
    data |= {
        name: ("statement", [getattr(statement, name) for _, statement in statements])
        for name in ("analysis", "value", "null", "spread", "p", "q")
    }
    coords = {"question": [verdict.question for verdict in all_verdicts], "statement": [name for name, _ in statements]}
    attributes = {
        "analysis": "verdicts",
        "controls": len(results.controls),
        "level": SIGNIFICANCE_LEVEL,
        "family": FAMILY_SIZE,
    }
    return xr.Dataset(data, coords, attributes)
