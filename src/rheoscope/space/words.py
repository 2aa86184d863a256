"""The text that an analysis contributes to reports: its findings, its lines of the story, its table columns and its sections."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.space.results import Results
from rheoscope.space.story_line import StoryLine
from rheoscope.space.training_quantity import TrainingQuantity
from rheoscope.statistics.statement import Statement

if TYPE_CHECKING:
    import xarray

    from rheoscope.picture.blocks import Block

Candidate = Callable[[Results], Statement | None]
"""A finding to be tested: one statement, or None if its analysis has no result."""
MISSING_NUMBER = "none"
"""NaN as `messages.numbers` writes it."""
LayerNumber = Callable[["xarray.Dataset", int], float]
"""A number of a result at one layer."""


@dataclass(frozen=True)
class LayerColumn:
    """A column of the table of layers: how to read its number and its null from the result of `analysis` at a layer."""

    analysis: str
    title: str
    definition: str
    value: LayerNumber
    null: LayerNumber | None = None


@dataclass(frozen=True, eq=False)
class ReportSection:
    """Blocks of a report. They are shown as soon as this analysis and those in `needs` have run.

    `order` is the place among the sections of the report. `page_only` sections appear on the page, not in the terminal.
    """

    report: str
    order: int
    blocks: "Callable[[Results], list[Block]]"
    needs: tuple[str, ...] = ()
    page_only: bool = False


@dataclass(frozen=True)
class OwnReport:
    """A report, with a command of its own, that fails if this analysis has no result.

    `title` is a template with the parameters {text} and {model}. `has_findings` adds the significant findings. `next_step` is
    what the report shows about a text, for the commands below the story of that text.
    """

    name: str
    title: Message
    has_findings: bool = False
    next_step: str = ""
    next_options: str = ""
    """The options that the command of `next_step` needs."""
    can_describe: Callable[[Results], bool] = lambda results: True
    """Whether the report has a result for a text in a model, so that the command is worth printing."""


@dataclass(frozen=True, eq=False)
class Words:
    """Everything that an analysis contributes to reports, declared as `WORDS` in its `words.py`.

    `sentence` states the main number of a result as one would say it; None if this result has none.

    `tables` are the blocks of a report on this analysis alone; without them it has a table for each axis of its fields.
    `training_quantities` are followed while a model trains. `sampling_note` describes the sample that the analysis took from a
    long text. `token_tips` maps a token's position to a line that is shown with the token. `next_step` is what the analysis shows
    about any text, for the commands below its story if fewer than three reports can describe the text.
    """

    sentence: "Callable[[xarray.Dataset], Message | None]" = lambda dataset: None
    findings: tuple[Candidate, ...] = ()
    story: tuple[StoryLine, ...] = ()
    layer_columns: tuple[LayerColumn, ...] = ()
    sections: tuple[ReportSection, ...] = ()
    tables: "Callable[[Results], list[Block]] | None" = None
    report: OwnReport | None = None
    training_quantities: tuple[TrainingQuantity, ...] = ()
    sampling_note: "Callable[[xarray.Dataset], Message | None]" = lambda dataset: None
    token_tips: "Callable[[xarray.Dataset], dict[int, Message]]" = lambda dataset: {}
    next_step: str = ""

    def result_sentence(self, dataset: "xarray.Dataset") -> Message | None:
        """The sentence of a result; None if the result lacks one of its fields or numbers."""
        try:
            sentence = self.sentence(dataset)
        except (AttributeError, KeyError):  # some texts and settings leave fields out
            return None
        is_complete = sentence is not None and MISSING_NUMBER not in map(str, sentence.parameters.values())
        return sentence if is_complete else None
