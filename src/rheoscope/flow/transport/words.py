"""Text about transport: do tokens keep their identity, and where do they go?"""

from rheoscope.messages.message import Message, join
from rheoscope.messages.numbers import format_change, format_fixed, format_number
from rheoscope.space.questions import Question
from rheoscope.space.results import Results
from rheoscope.space.training_quantity import TrainingQuantity, last_point
from rheoscope.space.words import LayerColumn, Words
from rheoscope.statistics.statement import Statement, from_draws
from rheoscope.statistics.verdict import NO, UNCLEAR, YES, Verdict, control_text, null_text


def kappa_from_embedding(results: Results) -> Statement | None:
    transport = results.datasets.get("transport")
    if transport is None or "kappa_null_draws" not in transport:
        return None
    value, null = float(transport.kappa_strided.values[-1, -1]), transport.kappa_null_draws.values
    comparison = (
        Message("Keeping every token's identity is less efficient than under the null")
        if value < null.mean()
        else Message("Keeping every token's identity is more efficient than under the null")
    )
    text = Message(
        "{comparison}: κ = {value} from the embedding to the last layer (permuted displacements {null}).",
        comparison=comparison,
        value=format_fixed(value),
        null=format_fixed(null.mean()),
    )
    return from_draws(text, "transport", value, null)


MIN_IDENTITY_SHARE = 0.9
"""The share of tokens left in place above which the answer is yes; below one half it is no."""


def judge(results: Results, question: Question) -> Verdict:
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
    next_type_claim = question.claim(next_type_statement, next_type_statement.value > next_type_statement.null, 0.05)
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
        own=format_change(*transport.toward_own.values[[0, -1]]),
        next=format_change(*transport.toward_next.values[[0, -1]]),
    )
    destination = Message("to the next token") if next_type_claim.answer == YES else Message("destination unclear")
    answer = join(" · ", [stays_answer, destination])
    return Verdict(question.question, answer, line, question.deeper, [next_type_claim.statement])


QUESTION = Question(
    order=4,
    name="identity",
    question=Message("Do tokens keep their identity, and where do they go?"),
    needs=("transport",),
    deeper="rheoscope analyse transport",
    judge=judge,
    required_fields=("next_type_share_null_draws",),
)


KAPPA = LayerColumn(
    "transport",
    "κ",
    Message(
        "1 if keeping every token's identity is the cheapest way to reach the next cloud, 0 if it is no "
        "better than random pairing (null: permuted displacements)"
    ),
    lambda transport, layer: float(transport.kappa[layer]),
    lambda transport, layer: float(transport.kappa_null[layer]) if "kappa_null" in transport else float("nan"),
)


TRAINING_QUANTITIES = (
    TrainingQuantity(
        7,
        "transport",
        "toward_next",
        "toward_next",
        "toward_next_null",
        Message("mean cosine of a token's last point with the embedding of the next token"),
        {"strides": (1,), "draws": 20},
        last_point,
    ),
)
WORDS = Words(
    training_quantities=TRAINING_QUANTITIES, findings=(kappa_from_embedding,), question=QUESTION, layer_columns=(KAPPA,)
)
