"""Text about the readout: where the prediction forms, and what each layer predicts."""

import numpy as np

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_number
from rheoscope.picture.blocks import Block, Cell, Table
from rheoscope.picture.token_labels import display_token, step_names
from rheoscope.space.questions import Question
from rheoscope.space.results import Results
from rheoscope.space.step import Step
from rheoscope.space.words import ReportSection, Words
from rheoscope.statistics.statement import from_draws
from rheoscope.statistics.verdict import Verdict, null_text

N_LIKELIEST = 4


def judge(results: Results, question: Question) -> Verdict:
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
    return question.from_claims([question.claim(statement, statement.value > statement.null, 0.5)], line)


QUESTION = Question(
    order=7,
    name="prediction",
    question=Message("Where does the prediction form, and which component writes it?"),
    needs=("readout",),
    deeper="rheoscope reverse",
    judge=judge,
    required_fields=("log_probability_next_null_draws",),
)


def blocks(results: Results) -> list[Block]:
    """The prediction at the embedding and at the end of every layer."""
    if not results.has("readout"):
        return []
    lens = results.datasets["readout"]
    target_text = display_token(results.token_strings([int(lens.attrs["target"])])[0])
    definitions = {
        name: str(lens[name].attrs["definition"]) for name in ("probability", "rank", "entropy", "top_tokens")
    }
    header = [
        Cell(Message("after")),
        Cell(Message("p(target)"), definitions["probability"]),
        Cell(Message("rank"), definitions["rank"]),
        Cell(Message("entropy"), Message("{definition}, in nats", definition=definitions["entropy"])),
        Cell(Message("likeliest next tokens"), definitions["top_tokens"]),
    ]
    rows = []
    for point in map(str, lens.point.values):
        step = Step.parse(point)
        if not (step.is_embed or step.is_end_of_layer):
            continue
        row = lens.sel(point=point)
        token_texts = results.token_strings([int(token) for token in row.top_tokens.values[:N_LIKELIEST]])
        likeliest = [
            f"{display_token(token_text)} {float(p):.2f}"
            for token_text, p in zip(token_texts, row.top_probabilities.values, strict=False)
        ]
        numbers = f"{float(row.probability):.3f}", f"{int(row['rank'])}", f"{float(row.entropy):.2f}"
        step_name = "embed" if step.is_embed else f"L{step.layer}"
        rows.append([Cell(step_name), *map(Cell, numbers), Cell("  ".join(likeliest))])
    heading = Message("Prediction after each layer (logit lens); the target is {token}", token=target_text)
    return [Table(heading, header, rows, frozenset({0, 4}))]


WORDS = Words(question=QUESTION, sections=(ReportSection("flow", 0, blocks),))
