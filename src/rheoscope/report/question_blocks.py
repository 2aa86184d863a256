"""The seven questions and their answers, each shown as soon as its analyses have run."""

from collections.abc import Callable

from rheoscope.messages.message import Message, join, plural
from rheoscope.messages.numbers import format_number
from rheoscope.picture.blocks import AnsweredQuestion, Block, Questions
from rheoscope.report.verdicts import QUESTIONS, Question
from rheoscope.space.results import Results

HEADING = Message("Seven questions about this text in this model")
RULE = Message("Yes: significant after correction for all tests. No: an effect of interest would have been detected.")


def blocks(question: Question) -> Callable[[Results], list[Block]]:
    """The block of one question; the first one brings the heading."""

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
    """Which part of a long text the expensive analyses sampled, and the error of that."""
    agreement, distortion = (results.datasets.get(name) for name in ("agreement", "distortion"))
    notes = []
    if agreement is not None and "agreement_error" in agreement:
        notes.append(
            Message(
                "On this long text, agreement samples {n} queries (± {error} per head).",
                n=agreement.attrs["sampled_queries"],
                error=format_number(float(agreement.agreement_error.mean())),
            )
        )
    if distortion is not None and "rsa_error" in distortion:
        notes.append(
            Message(
                "Distortion samples the distances from {n} tokens (± {error} per head).",
                n=distortion.attrs["max_tokens"],
                error=format_number(float(distortion.rsa_error.mean())),
            )
        )
    return notes
