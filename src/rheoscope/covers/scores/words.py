"""Text about scores: their components on a text, for each layer."""

from rheoscope.covers.operators.words import REPORT
from rheoscope.messages.message import Message
from rheoscope.picture.blocks import Block
from rheoscope.picture.head_medians import head_median_table
from rheoscope.space.results import Results
from rheoscope.space.words import ReportSection, Words

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


WORDS = Words(sections=(ReportSection(REPORT.name, 2, blocks),))
