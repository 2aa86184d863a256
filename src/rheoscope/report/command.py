"""How every command runs: ask, tell what is known, write the files that were asked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rheoscope.files import free_name
from rheoscope.report.answers import Answers
from rheoscope.report.answers_page import compared_page, page_of
from rheoscope.report.asking import Beside, Subject, ask
from rheoscope.report.findings import as_dataset, findings
from rheoscope.report.jobs import Job, Options
from rheoscope.report.json_file import save_json
from rheoscope.report.progress import asking_bar
from rheoscope.report.table import save_csv
from rheoscope.report.tell import layers, text
from rheoscope.report.terminal import Terminal
from rheoscope.report.threads import leave_a_core
from rheoscope.report.verdicts import QUESTIONS, dataset_of
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Model, Text

if TYPE_CHECKING:
    import xarray
    from rich.console import Console

REPORT = Path("report.html")
"""Where the page goes when nobody says; a name that is taken is left alone."""


@dataclass(frozen=True)
class Files:
    """Where answers go besides the terminal."""

    json: Path | None = None
    csv: Path | None = None
    html: Path | None = None
    report: bool = False
    """Whether a page is written beside the user even where no name was typed."""

    def __post_init__(self) -> None:
        named = [path.resolve() for path in (self.json, self.csv, self.html) if path is not None]
        twice = next((path for at, path in enumerate(named) if path in named[:at]), None)
        if twice is not None:
            raise RheoscopeError(f"{twice.name} is named twice; type a name of its own for every file")

    @property
    def any(self) -> bool:
        return self.json is not None or self.csv is not None or self.html is not None


def run(
    job: Job,
    model: Model,
    said: Text | None,
    options: Options,
    files: Files,
    fast: bool = False,
    explain: bool = False,
    controls: Sequence[Callable[[], Model]] = (),
) -> None:
    """One command on one text, or on weights alone; `controls` make untrained models that the text is put through too."""
    from rich.console import Console

    console = Console(highlight=False)
    terminal = Terminal(console, job.tells, explain)
    answers = _answered(job, model, said, options, files, fast, terminal, controls)
    terminal.end(answers)
    write(console, numbers_of(answers), page_of(job, answers).save if files.html or files.report else None, files)


def compare(job: Job, model: Model, texts: Sequence[Text], options: Options, files: Files, fast: bool = False) -> None:
    """Two texts, layer by layer beside each other."""
    from rich.console import Console

    console = Console(highlight=False)
    terminal = Terminal(console, [])
    both = [_answered(job, model, said, options, files, fast, terminal) for said in texts]
    first, second = both
    for block in layers.compared(first, second):
        terminal.show(block)
    for at, answers in enumerate(both, 1):
        terminal.heading(f"Text {at}: {text.title(answers)}")
        for one in job.tells:
            if layers.blocks is not one.blocks and not one.aside:
                for block in one.blocks(answers):
                    terminal.show(block)
        terminal.end(answers)
    page = compared_page(job, first, second).save if files.html or files.report else None
    write(console, numbers_of(first), page, files, numbers_of(second))


def _answered(
    job: Job,
    model: Model,
    said: Text | None,
    options: Options,
    files: Files,
    fast: bool,
    terminal: Terminal,
    controls: Sequence[Callable[[], Model]] = (),
) -> Answers:
    """Everything asked, told as it is known; a job that has nothing to tell says why."""
    trace = None if said is None else model.trace(said)
    subject = Subject(model, said, trace)
    asks = [*job.asks(options), *(job.besides(options) if files.any else [])]
    terminal.begin(Answers(model.view, model.words, trace))

    def hear(so_far: Answers) -> None:
        if job.must in so_far.left_out:
            raise RheoscopeError(so_far.left_out[job.must])
        terminal.hear(so_far)

    with asking_bar() as tell:
        return ask(subject, asks, not fast, beside(controls, said), hear, tell)


def beside(controls: Sequence[Callable[[], Model]], said: Text | None) -> Beside:
    """The text in every control; where there is none, nothing to wait for."""
    if said is None or not controls:
        return ()
    leave_a_core()

    def put_through(make: Callable[[], Model]) -> Subject:
        control = make()
        return Subject(control, said, control.trace(said))

    return [partial(put_through, make) for make in controls]


def write(
    console: "Console",
    numbers: "dict[str, xarray.Dataset]",
    save_page: Any,
    files: Files,
    compared: "dict[str, xarray.Dataset] | None" = None,
) -> None:
    """Files in the order in which they are typed; a report that nobody named fails quietly."""
    said = [] if files.json is None else [save_json(numbers, files.json, compared)]
    if files.csv is not None:
        said.append(save_csv(numbers, files.csv))
        said += [] if compared is None else [save_csv(compared, files.csv / "compared")]
    for line in said:
        console.print(line, soft_wrap=True, markup=False)
    if save_page is None:
        return
    try:
        console.print(save_page(free_name(REPORT) if files.html is None else files.html), soft_wrap=True, markup=False)
    except RheoscopeError as error:
        if files.html is not None:
            raise
        console.print(f"no report: {error}", soft_wrap=True, markup=False, style="dim")


def numbers_of(answers: Answers) -> "dict[str, xarray.Dataset]":
    """Every Dataset under its key, and what was found in them."""
    found = dict(answers.found)
    if len(found) > 1 and answers.nulls:
        found["findings"] = as_dataset(*findings(answers))
    if all(answers.asked(*one.needs) for one in QUESTIONS):
        found["verdicts"] = dataset_of(answers)
    return found
