"""Text about the heads of a layer together: how much of the distances they recover."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_fixed, format_number
from rheoscope.space.results import Results
from rheoscope.space.words import Words
from rheoscope.statistics.statement import Statement, from_draws

if TYPE_CHECKING:
    import xarray


def stack_recovery(results: Results) -> Statement | None:
    stack = results.datasets.get("stack")
    if stack is None or "mean_recovered_null_draws" not in stack:
        return None
    value, null = float(stack.recovered[:, -1].mean()), stack.mean_recovered_null_draws.values
    comparison = (
        Message("The heads of a layer together recover less of the distances than randomly rotated heads")
        if value < null.mean()
        else Message("The heads of a layer together recover more of the distances than randomly rotated heads")
    )
    text = Message(
        "{comparison} (mean over layers {value}; null {null}).",
        comparison=comparison,
        value=format_fixed(value),
        null=format_fixed(null.mean()),
    )
    return from_draws(text, "stack", value, null)


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """How well the heads of a layer together recover the distances of its tokens."""
    return Message(
        "All heads of a layer together recover distances with a mean rank correlation of {recovered}; the best layer reaches {most}.",
        recovered=format_number(float(dataset.mean_recovered)),
        most=format_number(float(dataset.recovered.isel(heads_used=-1).max())),
    )


WORDS = Words(sentence=main_sentence, findings=(stack_recovery,))
