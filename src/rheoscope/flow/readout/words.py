"""Text about the readout: the predicted token, what writes it, and what each layer predicts."""

import math
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.flow.readout import layer_bars, source_reading
from rheoscope.messages.message import Message, Verbatim, join
from rheoscope.messages.numbers import format_percent
from rheoscope.picture.blocks import Block, Cell, Table
from rheoscope.picture.token_labels import display_token, quoted_token, step_names
from rheoscope.space.results import Results
from rheoscope.space.step import Step
from rheoscope.space.story_line import StoryLine, StoryPicture, typical_ends, typical_range
from rheoscope.space.words import ReportSection, Words

if TYPE_CHECKING:
    import xarray

N_LIKELIEST = 4
N_WRITERS = 4


def next_token(results: Results) -> Message:
    """The most likely tokens, and since when the first has been in the first place."""
    lens = results.datasets["readout"]
    texts = results.token_strings([int(token) for token in lens.top_tokens.values[-1][:N_LIKELIEST]])
    likeliest = [
        Message("{token} {percent}", token=quoted_token(text), percent=format_percent(float(p)))
        for text, p in zip(texts, lens.top_probabilities.values[-1], strict=False)
    ]
    is_first = lens["rank"].values == 1
    since = 0 if is_first.all() else len(is_first) - int(np.argmin(is_first[::-1]))
    step = step_names(lens.point.values)[min(since, len(is_first) - 1)]
    return Message(
        "{tokens}; in first place since {step}{typical}",
        tokens=join(", ", likeliest),
        step=step,
        typical=typical_probability(results),
    )


def typical_probability(results: Results) -> Message | str:
    """The usual probability of the likeliest token, after a semicolon. Empty without a card."""
    ends = typical_ends(results, "next_token", format_percent)
    if ends is None:
        return ""
    return Message("; the likeliest token usually has {low} to {high}", low=ends[0], high=ends[1])


def largest_probability(results: Results) -> float:
    return float(results.datasets["readout"].top_probabilities.values[-1, 0])


def written_by(results: Results) -> Message:
    """The components that contribute most to the logit of the predicted token."""
    lens = results.datasets["readout"]
    contributions, total = lens.attribution.values, float(lens.logit_above_mean)
    largest = np.argsort(-np.abs(contributions), kind="stable")[:N_WRITERS]
    writers = [f"{lens.component.values[index]} {contributions[index]:+.1f}" for index in largest]
    return Message(
        "{writers} … of {total:.1f} above the mean logit of all tokens{typical}",
        writers=Verbatim(", ".join(writers)),
        total=total,
        typical=typical_range(results, "written_by", lambda logit: f"{logit:.1f}"),
    )


def logit_above_mean(results: Results) -> float:
    return float(results.datasets["readout"].get("logit_above_mean", math.nan))


STORY = (
    StoryLine(
        1,
        "next_token",
        Message("Next token"),
        ("readout",),
        "rheoscope analyse readout",
        next_token,
        required_fields=("log_probability_next",),
        picture=StoryPicture(2, layer_bars.panels),
        number=largest_probability,
    ),
    StoryLine(
        2,
        "written_by",
        Message("Written by"),
        ("readout",),
        "rheoscope reverse",
        written_by,
        required_fields=("attribution",),
        number=logit_above_mean,
    ),
    StoryLine(
        4,
        "from_source",
        Message("From source"),
        ("readout",),
        "rheoscope analyse readout",
        source_reading.read_from_source,
        required_fields=("source_weight",),
        reads_source=True,
        picture=StoryPicture(4, source_reading.panels),
    ),
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


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """The rank and the probability of the target at the end."""
    return Message(
        "The target ends at rank {rank} of the vocabulary, with a probability of {probability}.",
        rank=int(dataset["rank"][-1]),
        probability=format_percent(float(dataset.probability[-1])),
    )


WORDS = Words(sentence=main_sentence, story=STORY, sections=(ReportSection("flow", 0, blocks),))
