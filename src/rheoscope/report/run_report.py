"""How every command runs: ask, tell what is known, write the files that were asked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rheoscope.files import check_free, check_outputs, free_name
from rheoscope.picture.blocks import named
from rheoscope.report import layer_table, text_blocks
from rheoscope.report.console import console
from rheoscope.report.csv_files import COMPARED, check_tables, save_csv
from rheoscope.report.findings import as_dataset, findings
from rheoscope.report.idle_cores import leave_a_core
from rheoscope.report.json_file import save_json
from rheoscope.report.progress_bars import asking_bar
from rheoscope.report.report_page import compared_page, page_of
from rheoscope.report.report_plans import Job, Options
from rheoscope.report.run_analyses import Beside, Subject, ask
from rheoscope.report.shell_advice import in_shell
from rheoscope.report.terminal import Terminal
from rheoscope.report.verdicts import QUESTIONS, dataset_of
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Model, Text
from rheoscope.space.results import Answers

if TYPE_CHECKING:
    import xarray

REPORT = Path("report.html")
"""Where the page goes when nobody says; a name that is taken is left alone."""


@dataclass(frozen=True)
class Files:
    """Where answers go besides the terminal; names that cannot be written to are refused at once, before anything is computed."""

    json: Path | None = None
    csv: Path | None = None
    html: Path | None = None
    read: Path | None = None
    """Where the text comes from, if from a file."""
    report: bool = False
    """Whether a page is written beside the user even where no name was typed."""

    def __post_init__(self) -> None:
        check_outputs([path for path in (self.json, self.html) if path is not None], self.csv, self.read)
        if self.csv is not None:
            check_tables(self.csv)
        if self.page and self.html is None:
            _check_report()

    @property
    def any(self) -> bool:
        return self.json is not None or self.csv is not None or self.html is not None

    @property
    def page(self) -> bool:
        """Whether there is a page among them."""
        return self.report or self.html is not None


def _check_report() -> None:
    """A report that nobody named is written here, or the user has to say where."""
    try:
        check_free(free_name(REPORT))
    except RheoscopeError as error:
        told = str(error).split("; type")[0]
        raise RheoscopeError(f"{told}; type --html and a name in another directory, or --no-html") from error


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
    terminal = Terminal(console(), job.tells, explain)
    answers = _answered(job, model, said, options, files, fast, terminal, controls)
    wrote = write(numbers_of(answers), page_of(job, answers).save if files.page else None, files)
    terminal.end(answers)
    terminal.files(wrote)
    tell_failed(answers)


def compare(
    job: Job,
    model: Model,
    texts: Sequence[Text],
    options: Options,
    files: Files,
    fast: bool = False,
    explain: bool = False,
) -> None:
    """Two texts, layer by layer beside each other."""
    terminal = Terminal(console(), [], explain)
    both = [_answered(job, model, said, options, files, fast, terminal) for said in texts]
    first, second = both
    page = compared_page(job, first, second).save if files.page else None
    wrote = write(numbers_of(first), page, files, numbers_of(second))
    for block in layer_table.compared(first, second):
        terminal.show(block)
    for at, answers in enumerate(both, 1):
        terminal.heading(f"Text {at}: {text_blocks.title(answers)}")
        for one in job.tells:
            if layer_table.blocks is not one.blocks and not one.aside:
                for block in one.blocks(answers):
                    terminal.show(named(block, f" (text {at})"))
        terminal.end(answers)
    terminal.files(wrote)
    tell_failed(first, second)


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
        terminal.hear(as_typed(so_far))

    with asking_bar() as tell:
        return as_typed(ask(subject, asks, not fast, beside(controls, said), hear, tell))


def as_typed(answers: Answers) -> Answers:
    """The same, every reason why something is left out with its advice as it is typed in a shell."""
    reasons = {key: in_shell(why, f"rheoscope analyse {key.split()[0]}") for key, why in answers.left_out.items()}
    return replace(answers, left_out=reasons)


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
    numbers: "dict[str, xarray.Dataset]",
    save_page: Any,
    files: Files,
    compared: "dict[str, xarray.Dataset] | None" = None,
) -> list[str]:
    """Every file that was asked for, in the order in which they are typed, and a line for each."""
    said = [] if files.json is None else [save_json(numbers, files.json, compared)]
    if files.csv is not None:
        said.append(save_csv(numbers, files.csv))
        said += [] if compared is None else [save_csv(compared, files.csv / COMPARED)]
    if save_page is not None:
        said.append(save_page(free_name(REPORT) if files.html is None else files.html))
    return said


def tell_failed(*every: Answers) -> None:
    """A fault of the program is an error once everything else is told and written."""
    failed = {key: answers.left_out[key] for answers in every for key in answers.failed}
    if failed:
        name, reason = next(iter(failed.items()))
        others = f", and so did {', '.join(list(failed)[1:])}" if len(failed) > 1 else ""
        raise RheoscopeError(f"{name} failed, {reason}{others}; everything else is told and written")


def numbers_of(answers: Answers) -> "dict[str, xarray.Dataset]":
    """Every Dataset under its key, and what was found in them."""
    found = dict(answers.found)
    if len(found) > 1 and answers.nulls:
        found["findings"] = as_dataset(*findings(answers))
    if all(answers.asked(*one.needs) for one in QUESTIONS):
        found["verdicts"] = dataset_of(answers)
    return found
