"""Text about clusters by meaning: do token types gather, and do clusters share a stem?"""

from dataclasses import replace

from rheoscope.flow.clusters.words import log_rank_reduction
from rheoscope.messages.message import Message, join
from rheoscope.messages.numbers import format_change, format_number
from rheoscope.space.questions import Question
from rheoscope.space.results import Results
from rheoscope.space.words import Words
from rheoscope.statistics.statement import Statement, from_draws
from rheoscope.statistics.verdict import UNCLEAR, Verdict, control_text

MIN_STEM_PAIRS = 3
"""Pairs of token types that share a stem; with fewer, a single pair could decide."""


def judge(results: Results, question: Question) -> Verdict:
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
        rank=format_change(*clusters.type_effective_rank.values[[0, -1]]),
    )
    stems = results.datasets["purity"].sel(by="stem")
    if int(stems.same_label_pairs) < MIN_STEM_PAIRS:
        rank_verdict = question.from_claims(
            [question.claim(rank_statement, rank_statement.value > max(0.0, rank_statement.null), 0.1)],
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
        question.claim(rank_statement, rank_statement.value > max(0.0, rank_statement.null), 0.1),
        question.claim(stem_statement, value > max(null, purity_before), 0.05),
    ]
    return question.from_claims(claims, join(" ", [cluster_line, purity_line]))


QUESTION = Question(
    order=5,
    name="meaning",
    question=Message("Do tokens form clusters, and by meaning?"),
    needs=("clusters", "purity"),
    deeper="rheoscope analyse senses",
    judge=judge,
    n_statements=2,
)


WORDS = Words(question=QUESTION)
