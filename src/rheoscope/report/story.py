"""The story of a text: what happens to it in a model, in the order in which a person would explain it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rheoscope.messages.message import Message, join
from rheoscope.picture.blocks import Block, Story, StoryEntry
from rheoscope.report.analysis_runs import Subject, run_analyses
from rheoscope.report.card_cache import find_card
from rheoscope.report.findings import ALL_WORDS
from rheoscope.report.input_media import IMAGE_INPUTS
from rheoscope.report.report_settings import report_request
from rheoscope.space.model import Model, check_same_weights
from rheoscope.space.results import Results
from rheoscope.space.story_line import StoryLine, percentile
from rheoscope.space.trace import Trace
from rheoscope.space.view import View

if TYPE_CHECKING:
    import xarray

STORY_LINES: tuple[StoryLine, ...] = tuple(
    sorted((line for words in ALL_WORDS.values() for line in words.story), key=lambda line: line.order)
)
"""The lines of all analyses, in their order."""
TEXT_LINES = tuple(line for line in STORY_LINES if not line.reads_source)
"""The lines of a text that has no source."""
STORY_PICTURES = tuple(
    sorted(
        ((line, line.picture) for line in STORY_LINES if line.picture is not None),
        key=lambda line_and_picture: line_and_picture[1].order,
    )
)
"""The lines that have a picture, with it, in the order of the pictures."""
STORY_ANALYSES = tuple(dict.fromkeys(name for line in STORY_LINES for name in line.needs))
"""The analyses behind the lines, in the order in which they run."""


def story(model: Model, trace: Trace) -> "xarray.Dataset":
    """What happens to a text in a model, line by line, with measured numbers and their nulls.

    **Question** Which token comes next, which components write it, which heads are at work? Where do tokens move, which pairs
    does a projection separate or merge, which groups form?

    **Returns** (line): `title`, `sentence` and `deeper`, a command that shows more. A line without a result gives the reason.
    `number` is the number of the line that can be compared between texts, and `percentile` the percentage of the texts of the
    model's card with a smaller one; NaN without a card.
    (reader, token): `weight`, with which each head at work reads each token from the predicting one.

    **Laws** A story describes one text. It never answers yes or no: that needs many texts (`rs.card`).

    **See also** `rs.analyses()` lists the analyses, `rs.save_report` draws them.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> story = rs.story(model, model.trace("The keys to the cabinet are on the table in the hall"))
    >>> story.line.values[:2].tolist()
    ['next_token', 'written_by']
    """
    check_same_weights(model, trace)
    subject = Subject(model, trace.source, trace)
    requests = [report_request(name) for name in STORY_ANALYSES]
    return story_dataset(run_analyses(subject, requests, card=find_card(model.view)))


def lines_of(view: View) -> tuple[StoryLine, ...]:
    """The lines that texts of a model have."""
    return STORY_LINES if view.cross_heads else TEXT_LINES


def story_dataset(results: Results) -> "xarray.Dataset":
    """The story of a run as a Dataset (line)."""
    import xarray as xr

    lines = lines_of(results.view)
    data: dict[str, Any] = {
        "title": ("line", [str(line.title) for line in lines]),
        "sentence": ("line", [str(line.sentence(results)) for line in lines]),
        "deeper": ("line", [line.deeper for line in lines]),
        "number": ("line", [line.measured_number(results) for line in lines]),
        "percentile": ("line", [percentile(results, line) for line in lines]),
    }
    for line, picture in STORY_PICTURES:
        data |= dict(picture.numbers(results)) if line.has_result(results) else {}
    provenance = {} if results.trace is None else results.trace.provenance
    return xr.Dataset(data, {"line": [line.name for line in lines]}, {"analysis": "story"} | provenance)


def story_heading(results: Results) -> Message:
    """The heading of the story of a text, of an image or of a sound."""
    if results.view.reads_tokens:
        return Message("What happens to this text")
    reads_images = results.view.facts.get("input") in IMAGE_INPUTS
    return Message("What happens to this image") if reads_images else Message("What happens to this sound")


def line_blocks(line: StoryLine) -> Callable[[Results], list[Block]]:
    """The block of one line. The first line brings the heading. A line without a result has none."""

    def blocks(results: Results) -> list[Block]:
        heading = story_heading(results) if line is STORY_LINES[0] else ""
        deeper = "" if results.view.cross_heads else f"{line.deeper} TEXT"  # other commands read no target
        lines = [StoryEntry(line.title, line.sentence(results), deeper)] if line.has_result(results) else []
        return [Story(heading, lines)] if heading or lines else []

    return blocks


def picture_blocks(results: Results) -> list[Block]:
    """The pictures of all lines that have a result, for pages."""
    panels = [
        panel for line, picture in STORY_PICTURES if line.has_result(results) for panel in picture.panels(results)
    ]
    return [Story("", [], panels=panels)] if panels else []


def missing_blocks(results: Results) -> list[Block]:
    """Why lines are missing: the text is short, or null distributions were not drawn."""
    if results.trace is None:
        return []
    if not results.has_nulls:
        note = Message("Lines that need a null are left out: null distributions were not drawn (--fast).")
        return [Story("", [], note)]
    lines = lines_of_a_longer_text(results)
    if not lines:
        return []
    n = len(results.required_trace) - results.n_ordinary_tokens + max(line.min_tokens for line in lines)
    titles = join(", ", [line.title for line in lines])
    return [Story("", [], Message("A text of {n} tokens or more adds: {lines}.", n=n, lines=titles))]


def lines_of_a_longer_text(results: Results) -> list[StoryLine]:
    """The lines that this text is too short for. A model that predicts no token has none that need a prediction."""
    predicts = results.view.predicts_next_token
    return [
        line
        for line in lines_of(results.view)
        if results.n_ordinary_tokens < line.min_tokens and (predicts or not line.required_fields)
    ]
