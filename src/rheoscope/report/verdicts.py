"""Seven questions to a text in a model, each answered yes, no or cannot tell, with its number, its null and the untrained control."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.numbers import plural, short
from rheoscope.picture.token_labels import places, shown
from rheoscope.report.findings import FAMILY
from rheoscope.report.report_settings import asked
from rheoscope.report.run_analyses import Beside, Subject, ask
from rheoscope.space.model import Model, check_made_by
from rheoscope.space.results import Answers
from rheoscope.space.trace import Trace
from rheoscope.statistics.statement import LEVEL, Statement, corrected, from_draws, from_moments

if TYPE_CHECKING:
    import xarray

YES, NO, OPEN = "yes", "no", "cannot tell"
VISIBLE = 2.5
"""Standard deviations of a null that an effect must reach to be seen in most texts: a smaller one cannot be denied."""


@dataclass(frozen=True)
class Claim:
    """One thing that a question asks: what the statement says of it where it is sure (`holds`), and the least effect worth telling.

    A statement that is not sure denies the claim only where an effect of this size would have been seen.
    """

    statement: Statement
    holds: bool
    least: float

    @property
    def answer(self) -> str:
        one = self.statement
        if one.sure:
            return YES if self.holds else NO
        seen = math.isfinite(one.p) and VISIBLE * one.spread <= self.least
        return NO if seen else OPEN


@dataclass(frozen=True)
class Verdict:
    """A question, its answer in a word and in a line, and the command that goes deeper.

    `statements` are what it rests on, none where the answer is a measured number with its error.
    """

    question: str
    answer: str
    line: str
    deeper: str
    statements: Sequence[Statement] = ()


@dataclass(frozen=True, eq=False)
class Question:
    """One of the seven: the analyses it needs of the text and of the untrained control, and how an answer is made of them."""

    name: str
    question: str
    needs: tuple[str, ...]
    deeper: str
    weigh: Callable[[Answers, "Question"], Verdict]
    fields: tuple[str, ...] = ()
    """What an answer rests on and not every text or model has."""

    def verdict(self, answers: Answers) -> Verdict:
        """Its answer; where an analysis has none, the reason."""
        missing = [name for name in self.needs if not answers.knows(name)]
        if missing:
            return self.open(answers.left_out.get(missing[0], f"{missing[0]} was not asked"))
        if not answers.nulls:
            return self.open("nulls are left out (--fast)")
        absent = [field for field in self.fields if not any(field in answers.found[name] for name in self.needs)]
        return (
            self.open(f"this text in this model has no {absent[0].replace('_', ' ')}")
            if absent
            else self.weigh(answers, self)
        )

    def open(self, reason: str) -> Verdict:
        return Verdict(self.question, OPEN, reason, self.deeper)

    def of(self, claims: Sequence[Claim], line: str) -> Verdict:
        """Claims answered one after the other, equal answers told once."""
        said = [claim.answer for claim in claims]
        answer = said[0] if len(set(said)) == 1 else " · ".join(said)
        return Verdict(self.question, answer, line, self.deeper, [claim.statement for claim in claims])


def claim(statement: Statement, holds: bool, least: float) -> Claim:
    """A claim whose statement is corrected for everything that a run can say."""
    return Claim(corrected([statement], FAMILY)[0], holds, least)


def beside(values: Sequence[float]) -> str:
    """The control in words; nothing where there is none."""
    return f", untrained {short(float(np.mean(values)))}" if values else ""


def chance(statement: Statement) -> str:
    """What the null gives, in words."""
    known = math.isfinite(statement.null) and math.isfinite(statement.spread)
    return f"{short(statement.null)} ± {short(statement.spread)}" if known else "not known"


# The seven


def similarity(answers: Answers, question: Question) -> Verdict:
    heads = answers.found["agreement"]
    one = from_draws("", "agreement", float(heads.mean_agreement), heads.mean_agreement_drawn.values)
    sure = heads.q_value.values <= LEVEL
    more, less = (int((sure & (sign * (heads.agreement - heads.null_mean).values > 0)).sum()) for sign in (1, -1))
    line = (
        f"Scores follow likeness by {short(one.value)} (mean rank correlation given distance and length; random heads "
        f"{chance(one)}{beside(answers.untrained('agreement', lambda d: float(d.mean_agreement)))}); beyond chance "
        f"likeness is read by {more} of {plural(sure.size, 'head')}, its opposite by {less}."
    )
    return question.of([claim(one, one.value > one.null, 0.05)], line)


def deformation(answers: Answers, question: Question) -> Verdict:
    images = answers.found["distortion"]
    one = from_draws("", "distortion", float(images.mean_rsa.mean()), images.mean_rsa_drawn.mean("image").values)
    deformed = claim(one, one.value < one.null, 0.05)
    way = "more" if one.value < one.null else "less"
    how = f"{way} deformed than by chance" if deformed.statement.sure else "not told from what chance deforms"
    each = ", ".join(f"{short(float(images.mean_rsa.sel(image=name)))} as {name}" for name in images.image.values)
    line = (
        f"Distances between tokens, seen through a head, correlate by {short(one.value)} with those it reads ({each}; the same heads "
        f"turned at random {chance(one)}{beside(answers.untrained('distortion', lambda d: float(d.mean_rsa.mean())))}): "
        f"{how}."
    )
    return question.of([deformed], line)


def climbing(answers: Answers, question: Question) -> Verdict:
    heads = answers.found["energy"]
    cosine, spread = heads.cosine.values, heads.cosine_null_sd.values
    there = np.isfinite(cosine) & (spread > 0)
    error = float(np.sqrt((spread[there] ** 2).sum())) / max(int(there.sum()), 1)
    one = from_moments("", "energy", float(cosine[there].mean()), 0.0, error)
    line = (
        f"What heads add points along the gradient of their own energy by {short(one.value)} (mean cosine; content turned at random "
        f"{chance(one)}{beside(answers.untrained('energy', lambda d: float(d.cosine.mean())))}); "
        f"climbing beyond chance: {int(heads.gradient_like.sum())} of {plural(heads.gradient_like.size, 'head')}."
    )
    return question.of([claim(one, one.value > 0, 0.05)], line)


STAY = 0.9
"""The share of tokens left in place from which on tokens are said to stay themselves; below half they are said not to."""


def identity(answers: Answers, question: Question) -> Verdict:
    moved = answers.found["transport"]
    share = float(moved.identity_share_strided.values[-1, -1])
    null = float(moved.identity_share_null_strided.values[-1, -1])
    stays = YES if share >= STAY else NO if share <= 0.5 else OPEN
    drawn, orders = moved.next_type_share_drawn.values, len(answers.text) - len(answers.text.massive()) - 1
    went = from_draws("", "transport", float(moved.next_type_share), drawn, permuted=orders)
    goes = claim(went, went.value > went.null, 0.05)
    line = (
        f"From the embedding to the last layer the cheapest way leaves {short(share)} of the tokens in place (displacements permuted "
        f"{short(null)}); {short(went.value)} go to where their own token comes next (chance {chance(went)}"
        f"{beside(answers.untrained('transport', lambda d: float(d.next_type_share)))}); likeness to the own token "
        f"{_ends(moved.toward_own)}, to the next {_ends(moved.toward_next)}."
    )
    answer = f"{stays} · {'to the next token' if goes.answer == YES else 'cannot tell where'}"
    return Verdict(question.question, answer, line, question.deeper, [goes.statement])


def _ends(values: "xarray.DataArray") -> str:
    return f"{short(float(values[0]))} → {short(float(values[-1]))}"


def shrunk(gathered: "xarray.Dataset") -> float:
    """How much fewer directions the kinds of tokens use at the end than at the embedding, as a logarithm; below 0 they use more."""
    rank = gathered.type_effective_rank.values
    return float(np.log(rank[0] / rank[-1]))


def gathering(answers: Answers, question: Question) -> Verdict:
    gathered = answers.found["clusters"]
    one = from_draws("", "clusters", shrunk(gathered), answers.untrained("clusters", shrunk))
    counts = gathered.type_cluster_count.values
    how = "gather" if counts[-1] < counts[0] else "separate" if counts[-1] > counts[0] else "keep apart as they were"
    control = beside(answers.untrained("clusters", lambda d: float(d.type_cluster_count[-1])))
    line = (
        f"{plural(int(gathered.type_count), 'kind')} of tokens {how}: {plural(int(counts[0]), 'cluster')} at the embedding, "
        f"{int(counts[-1])} at the end"
        f"{control}; directions in use {_ends(gathered.type_effective_rank)}; {{}}."
    )
    stems = answers.found["purity"].sel(by="stem")
    if int(stems.pairs) < FEWEST:
        first = question.of(
            [claim(one, one.value > max(0.0, one.null), 0.1)],
            line.format("too few kinds share a stem to ask for meaning"),
        )
        return replace(first, answer=f"{first.answer} · {OPEN}")
    value, null, spread, p = (float(stems[name][-1]) for name in ("purity", "purity_null", "purity_null_sd", "p_value"))
    alike, before = Statement("", "purity", value, null, spread, p), float(stems.purity[0])
    said = f"clusters hold one stem by {short(value)} (names permuted {short(null)}, at the embedding {short(before)})"
    claims = [claim(one, one.value > max(0.0, one.null), 0.1), claim(alike, value > max(null, before), 0.05)]
    return question.of(claims, line.format(said))


FEWEST = 3
"""Pairs of kinds of tokens that share a stem, below which one lucky pair could decide."""


def settling(answers: Answers, question: Question) -> Verdict:
    layers = answers.found["fixed_point"]
    radius, error = layers.jacobian_radius.values, layers.jacobian_radius_error.values
    inside, outside = radius + error < 1, radius - error > 1
    answer = YES if inside.all() else NO if outside.any() else OPEN
    control = beside(answers.untrained("fixed_point", lambda d: float(d.jacobian_radius.median())))
    middle = int(np.argsort(radius)[len(radius) // 2])
    line = (
        f"Locally contracting here: {int(inside.sum())} of {plural(len(radius), 'layer')} asked. Where L{int(layers.layer[middle])} is "
        f"applied again, a small change grows by up to {short(float(radius[middle]))} ± {short(float(error[middle]))} times{control}; "
        f"one pass turns tokens by {short(float(layers.turn.median()))} rad (displacements permuted "
        f"{short(float(layers.turn_null.median()))})."
    )
    return Verdict(question.question, answer, line, question.deeper)


def prediction(answers: Answers, question: Question) -> Verdict:
    lens = answers.found["readout"]
    drawn, orders = lens.log_probability_next_drawn.values, len(answers.text) - 1
    one = from_draws("", "readout", float(lens.log_probability_next.mean()), drawn, permuted=orders)
    first = lens["rank"].values == 1
    since = 0 if first.all() else len(first) - int(np.argmin(first[::-1]))
    target = shown(answers.words([int(lens.attrs["target"])])[0])
    written = lens.attribution.values
    top = int(np.argmax(written))
    line = (
        f"The text is predicted at {short(one.value)} nats a token (next tokens permuted {chance(one)}). The answer {target} (p "
        f"{short(float(lens.probability[-1]))}) is first from {places([lens.point.values[min(since, len(first) - 1)]])[0]} on; "
        f"{lens.component.values[top]} writes most of it, {short(float(written[top]))} to its logit of {short(float(lens.logit))}."
    )
    return question.of([claim(one, one.value > one.null, 0.5)], line)


QUESTIONS: tuple[Question, ...] = (
    Question("similarity", "Does attention read similarity?", ("agreement",), "rheoscope covers", similarity),
    Question(
        "deformation",
        "What did the projections do to the geometry: deform it?",
        ("distortion",),
        "rheoscope analyse distortion",
        deformation,
    ),
    Question("gradient", "Do tokens move along a gradient?", ("energy",), "rheoscope analyse energy", climbing),
    Question(
        "identity",
        "Must tokens stay themselves, and where do they go?",
        ("transport",),
        "rheoscope analyse transport",
        identity,
        ("next_type_share_drawn",),
    ),
    Question(
        "meaning", "Do they gather, and by meaning?", ("clusters", "purity"), "rheoscope analyse senses", gathering
    ),
    Question(
        "settling",
        "Would the layers settle?",
        ("fixed_point",),
        "rheoscope analyse fixed_point",
        settling,
        ("turn_null",),
    ),
    Question(
        "prediction",
        "Where does the prediction form, and who writes it?",
        ("readout",),
        "rheoscope reverse",
        prediction,
        ("log_probability_next_drawn",),
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
    check_made_by(model, trace)
    text = trace.text or trace.ids
    needed = dict.fromkeys(name for one in QUESTIONS for name in one.needs)
    beside: Beside = [partial(lambda one: Subject(one, text, one.trace(trace.ids)), one) for one in controls]
    return dataset_of(ask(Subject(model, text, trace), [asked(name) for name in needed], controls=beside))


def dataset_of(answers: Answers) -> "xarray.Dataset":
    """The answers of a run as a Dataset (question), and the statements they rest on."""
    import xarray as xr

    told = [one.verdict(answers) for one in QUESTIONS]
    rests = [
        (one.name, statement) for one, verdict in zip(QUESTIONS, told, strict=True) for statement in verdict.statements
    ]
    data = {name: ("question", [getattr(one, name) for one in told]) for name in ("answer", "line", "deeper")}
    data |= {
        name: ("statement", [getattr(one, name) for _, one in rests])
        for name in ("analysis", "value", "null", "spread", "p", "q")
    }
    coords = {"question": [one.question for one in told], "statement": [name for name, _ in rests]}
    attributes = {"analysis": "verdicts", "controls": len(answers.controls), "level": LEVEL, "family": FAMILY}
    return xr.Dataset(data, coords, attributes)
