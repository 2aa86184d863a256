"""A long text in pieces: each is asked what a command asks, and what they say is joined as `over_texts` joins texts."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from rheoscope.catalogue import analysis
from rheoscope.messages.numbers import short
from rheoscope.picture.blocks import Answered, Block, Questions
from rheoscope.report import field_blocks, run_report, text_blocks
from rheoscope.report.console import console
from rheoscope.report.long_texts import Pieces
from rheoscope.report.page import Page
from rheoscope.report.progress_bars import asking_bar
from rheoscope.report.report_page import drawn
from rheoscope.report.report_plans import Job, Options
from rheoscope.report.run_analyses import Ask, Progress, Subject, ask
from rheoscope.report.run_report import Files
from rheoscope.report.terminal import Terminal
from rheoscope.report.verdicts import QUESTIONS, Question, Verdict
from rheoscope.running.over_texts import together
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Model, Text
from rheoscope.space.results import Answers

Controls = Sequence[Callable[[], Model]]
FILES = "Means over pieces; their intervals and every other number are in --json, --csv and --html."
Own = Callable[[Text], Options]
"""What is asked of a text besides, for its own sake: the same text elsewhere."""


def nothing(said: Text) -> Options:
    """What most commands ask besides."""
    return {}


def run(
    job: Job,
    model: Model,
    pieces: Pieces | None,
    options: Options,
    files: Files,
    fast: bool = False,
    explain: bool = False,
    controls: Controls = (),
    own: Own = nothing,
) -> None:
    """One command on a text, or on its pieces one after the other; on weights alone where there is none."""
    if pieces is None or len(pieces.texts) == 1:
        said = None if pieces is None else pieces.texts[0]
        every = {**options, **({} if said is None else own(said))}
        run_report.run(job, model, said, every, files, fast, explain, controls)
        return
    terminal = Terminal(console(), [], explain)
    terminal.line(text_blocks.model_line(Answers(model.view, model.words, None)), "dim")
    terminal.line(pieces.told)
    each = asked(job, model, pieces, options, fast, controls, own)
    answers = run_report.as_typed(joined(each))
    if job.must in answers.left_out:
        raise RheoscopeError(answers.left_out[job.must])
    blocks, shown = told(each, answers), told(each, answers, job.must)
    lead = f"{text_blocks.model_line(answers)}. {pieces.told}."
    page = drawn(Page(job.title(each[0]), lead), [*blocks, text_blocks.provenance(answers)])
    wrote = run_report.write(answers.found, page.save if files.page else None, files)
    for block in shown:
        terminal.show(block)
    terminal.line(FILES, "dim")
    terminal.end(answers)
    terminal.files(wrote)
    run_report.tell_failed(answers)


def refuse_several(pieces: Pieces | None, option: str) -> None:
    """Refuse an option that is about one text where there are several pieces."""
    if pieces is not None and len(pieces.texts) > 1:
        raise RheoscopeError(f"{option} and --window exclude each other; type one of them, or --first N")


def asks_of(job: Job, options: Options, first: bool) -> list[Ask]:
    """What a piece is asked: of the main job what its questions need; the first one also what weights alone answer."""
    asks = job.asks(options)
    needed = {name for one in QUESTIONS for name in one.needs}
    if needed <= {one.name for one in asks}:
        asks = [one for one in asks if one.name in needed]
    return [one for one in asks if first or analysis(one.name).reads_text]


def asked(
    job: Job, model: Model, pieces: Pieces, options: Options, fast: bool, controls: Controls, own: Own
) -> list[Answers]:
    """What every piece says."""
    each: list[Answers] = []
    with asking_bar() as tell:
        for at, ids in enumerate(pieces.texts):
            subject = Subject(model, ids, model.trace(ids))
            now = asks_of(job, {**options, **own(ids)}, first=at == 0)

            def say(what: str, at: int = at) -> Progress:
                return tell(f"piece {at + 1} of {len(pieces.texts)}: {what}")

            each.append(ask(subject, now, not fast, run_report.beside(controls, ids), tell=say))
    return each


def joined(each: Sequence[Answers]) -> Answers:
    """What the pieces say together; an analysis that one of them has no answer to is left out, with the reason."""
    first = each[0]
    missing = {
        key: f"{one.left_out[key]} (piece {at} of {len(each)})"
        for at, one in reversed(list(enumerate(each, 1)))
        for key in one.left_out
    }
    found = {}
    for key, dataset in first.found.items():
        many = [one.found[key] for one in each if key in one.found]
        if len(many) == len(each):
            found[key] = together(many)
        elif not analysis(key.split()[0]).reads_text:
            found[key] = dataset
    failed = tuple(dict.fromkeys(key for one in each for key in one.failed))
    return replace(first, trace=None, found=found, left_out=missing, failed=failed, controls=())


def told(each: Sequence[Answers], answers: Answers, must: str = "") -> list[Block]:
    """The seven questions, where everything they need was asked; else every number, from its fields: of all analyses, or of one
    that `must` be told, and the others in brief."""
    if all(each[0].asked(*one.needs) for one in QUESTIONS):
        said = "Each piece is answered by itself."
        return [Questions(f"Seven questions to {len(each)} pieces", [counted(one, each) for one in QUESTIONS], said)]
    whole = [must] if must else list(answers.found)
    tell = {key: field_blocks.blocks if key in whole else field_blocks.brief for key in answers.found}
    return [block for key, of in tell.items() for block in of(answers, key)]


def counted(question: Question, each: Sequence[Answers]) -> Answered:
    """How many pieces give which answer, and the number behind it from the least to the largest."""
    verdicts = [question.verdict(one) for one in each]
    said = Counter(one.answer for one in verdicts)
    (most, count), *others = said.most_common()
    line = f"{most} in {count} of {len(each)} pieces" + "".join(f", {answer} in {n}" for answer, n in others)
    return Answered(question.question, most, f"{line}{_numbers(verdicts)}.", question.deeper)


def _numbers(verdicts: Sequence[Verdict]) -> str:
    """The numbers that answers rest on, over the pieces."""
    said = []
    for name in dict.fromkeys(statement.analysis for one in verdicts for statement in one.statements):
        some = [statement for one in verdicts for statement in one.statements if statement.analysis == name]
        mean, null = (sum(getattr(one, of) for one in some) / len(some) for of in ("value", "null"))
        low, high = (short(of(one.value for one in some)) for of in (min, max))
        said.append(f"{name} {short(mean)} in the mean, {low} to {high}, chance {short(null)}")
    return f"; {'; '.join(said)}" if said else ""
