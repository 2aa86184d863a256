"""Text about the readout: where the prediction forms, and what each layer predicts."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_number
from rheoscope.picture.blocks import Block, Cell, Table
from rheoscope.picture.token_labels import display_token, step_names
from rheoscope.space.questions import Question
from rheoscope.space.results import Results
from rheoscope.space.step import Step
from rheoscope.space.words import ReportSection, Words
from rheoscope.statistics.statement import Statement, from_draws
from rheoscope.statistics.verdict import Verdict, null_text

if TYPE_CHECKING:
    import xarray

N_LIKELIEST = 4


def judge(results: Results, question: Question) -> Verdict:
    lens = results.datasets["readout"]
    null_losses, n_permuted = -lens.log_probability_next_null_draws.values, len(results.required_trace) - 1
    loss = -float(lens.log_probability_next.mean())
    statement = from_draws("", "readout", loss, null_losses, n_permuted=n_permuted)
    is_top_rank = lens["rank"].values == 1
    first_step = 0 if is_top_rank.all() else len(is_top_rank) - int(np.argmin(is_top_rank[::-1]))
    target_text = display_token(results.token_strings([int(lens.attrs["target"])])[0])
    contributions = lens.attribution.values
    top_component = int(np.argmax(contributions))
    logit, largest = float(lens.logit_above_mean), float(contributions[top_component])
    line = Message(
        "{token} is the top prediction from {step} on (p = {probability}, logit {own_logit}). {component} contributes most: "
        "{contribution} of {logit} above the mean logit. {loss}",
        token=target_text,
        step=step_names([lens.point.values[min(first_step, len(is_top_rank) - 1)]])[0],
        probability=format_number(float(lens.probability[-1])),
        component=lens.component.values[top_component],
        contribution=format_number(largest),
        logit=format_number(logit),
        own_logit=format_number(float(lens.logit)),
        loss=_loss_sentence(lens, statement),
    )
    return question.from_claims([question.claim(statement, statement.value < statement.null, 0.5)], line)


def _loss_sentence(lens: "xarray.Dataset", statement: Statement) -> Message:
    """The mean loss of the text, and the positions over which it is a mean."""
    numbers = {"value": format_number(statement.value), "null": null_text(statement)}
    n_positions, n_earlier = lens.sizes["earlier_token"], int(lens.attrs["token"])
    if n_positions < n_earlier:
        return Message(
            "Mean loss {value} nats per token over {n} evenly spaced of {total} positions (permuted next tokens {null}).",
            n=n_positions,
            total=n_earlier,
            **numbers,
        )
    return Message(
        "Mean loss {value} nats per token over the first {n} positions (permuted next tokens {null}).",
        n=n_positions,
        **numbers,
    )


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
