"""The questions and their answers, each shown as soon as its analyses have run."""

from collections.abc import Callable

from rheoscope.catalogue import ANALYSIS_MODULES, words_by_name
from rheoscope.messages.message import Message, join, plural
from rheoscope.picture.blocks import AnsweredQuestion, Block, Questions
from rheoscope.report.verdicts import QUESTIONS
from rheoscope.space.questions import Question
from rheoscope.space.results import Results

HEADING = Message("Seven questions about this text in this model")
RULE = Message("Yes: significant after correction for all tests. No: an effect of interest would have been detected.")


def blocks(question: Question) -> Callable[[Results], list[Block]]:
    """The block of one question. The first question brings the heading."""

    def question_blocks(results: Results) -> list[Block]:
        verdict = question.verdict(results)
        answered_question = AnsweredQuestion(verdict.question, verdict.answer, verdict.line, verdict.deeper)
        return [Questions(HEADING if question is QUESTIONS[0] else "", [answered_question])]

    return question_blocks


def control_note(results: Results) -> list[Block]:
    """How to read the answers, and how many untrained controls were run."""
    n_controls = len(results.controls)
    controls = (
        plural(
            "Untrained: the same text in {n} model with untrained weights.",
            "Untrained: the same text in {n} models with untrained weights.",
            n=n_controls,
        )
        if n_controls
        else Message("No untrained control was run.")
    )
    return [Questions("", [], join(" ", [controls, RULE, *sampling_notes(results)]))]


def sampling_notes(results: Results) -> list[Message]:
    """What each analysis sampled from a long text, and the error of that."""
    notes = [
        words_by_name(name).sampling_note(results.datasets[name]) for name in ANALYSIS_MODULES if results.has(name)
    ]
    return [note for note in notes if note is not None]
