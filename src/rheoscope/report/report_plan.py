"""What a report is: the analyses that it runs and the sections that it shows."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rheoscope.picture.blocks import Block
from rheoscope.report.analysis_runs import Request
from rheoscope.space.results import Results

Options = dict[str, Any]
"""The options of a command, by name."""
FLOW = "flow"
"""The name of the report on a text, which belongs to no single analysis."""


@dataclass(frozen=True, eq=False)
class Section:
    """Blocks that are shown once the analyses in `needs` have run.

    `page_only` ones appear only on a page, `full_only` ones in the terminal only with `--full`.
    """

    needs: tuple[str, ...]
    blocks: Callable[[Results], list[Block]]
    page_only: bool = False
    full_only: bool = False


@dataclass(frozen=True, eq=False)
class ReportPlan:
    """What a report runs under the options of its command, what it runs in addition for files, and what it shows.

    Without a result of the analysis `required` there is no report: the reason is raised as an error.
    """

    title: Callable[[Results], str]
    requests: Callable[[Options], list[Request]]
    build_sections: Callable[[], tuple[Section, ...]]
    file_requests: Callable[[Options], list[Request]] = field(default=lambda options: [])
    required: str = ""

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """What the report shows, in its order. They are built when they are first needed, with all analyses."""
        return self.build_sections()

    def all_requests(self, options: Options) -> list[Request]:
        """Everything that the report runs if it writes files."""
        return [*self.requests(options), *self.file_requests(options)]
