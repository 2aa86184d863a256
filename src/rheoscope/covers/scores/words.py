"""Text about scores: their components on a text, for each layer."""

from typing import TYPE_CHECKING

from rheoscope.covers.operators.words import REPORT
from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_percent
from rheoscope.picture.blocks import Block
from rheoscope.picture.head_medians import head_median_table
from rheoscope.space.results import Results
from rheoscope.space.words import ReportSection, Words
from rheoscope.statistics.field_summaries import median_of

if TYPE_CHECKING:
    import xarray

COLUMNS = {
    "centred": Message("centred"),
    "mean_query": Message("mean q"),
    "mean_key": Message("mean k"),
    "query_bias": Message("bias q"),
    "key_bias": Message("bias k"),
    "row_sd": Message("nats"),
    "positive_share_cloud": Message("positive"),
}


def blocks(results: Results) -> list[Block]:
    """The components of the scores, if a text was analysed."""
    if not results.has("scores"):
        return []
    dataset = results.datasets["scores"]
    massive = ", ".join(map(str, dataset.attrs["massive"])) or Message("none")
    heading = Message("Components of the scores on this text (shares of what softmax sees)")
    note = Message("massive tokens left out: {tokens}", tokens=massive)
    return [head_median_table(dataset, COLUMNS, heading, note)]


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """Which part makes up the scores of the median head."""
    return Message(
        "In the median head, {centred} of the scores' variance compares centred tokens, and {mean} prefers the same keys for all queries.",
        centred=format_percent(median_of(dataset.centred)),
        mean=format_percent(median_of(dataset.mean_query)),
    )


WORDS = Words(sentence=main_sentence, sections=(ReportSection(REPORT.name, 2, blocks),))
