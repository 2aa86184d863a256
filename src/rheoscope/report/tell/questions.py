"""The seven questions and their answers, each as soon as what it needs is known."""

from collections.abc import Callable

from rheoscope.report.answers import Answers
from rheoscope.report.telling import Answered, Block, Questions
from rheoscope.report.verdicts import QUESTIONS, Question

HEADING = "Seven questions to this text in this model"


def blocks(question: Question) -> Callable[[Answers], list[Block]]:
    """One question; the first brings the heading."""

    def told(answers: Answers) -> list[Block]:
        one = question.verdict(answers)
        answered = Answered(one.question, one.answer, one.line, one.deeper)
        return [Questions(HEADING if question is QUESTIONS[0] else "", [answered])]

    return told


def note(answers: Answers) -> list[Block]:
    """What the answers stand beside."""
    many = len(answers.controls)
    control = (
        f"Untrained: the same text in this architecture at initial weights, drawn {'once' if many == 1 else f'{many} times'}."
        if many
        else "No untrained control was run."
    )
    rule = "A yes has beaten chance after correction for everything tested; a no means that an effect worth telling would be seen."
    return [Questions("", [], f"{control} {rule}")]
