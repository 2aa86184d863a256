"""The seven questions and their answers, each as soon as what it needs is known."""

from collections.abc import Callable

from rheoscope.messages.numbers import short
from rheoscope.picture.blocks import Answered, Block, Questions
from rheoscope.report.verdicts import QUESTIONS, Question
from rheoscope.space.results import Answers

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
    return [Questions("", [], f"{control} {rule}{sampled(answers)}")]


def sampled(answers: Answers) -> str:
    """Which part of a long text the dearest analyses looked at, and how far off that leaves a head."""
    agreement, distortion = (answers.found.get(name) for name in ("agreement", "distortion"))
    said = []
    if agreement is not None and "agreement_error" in agreement:
        error = float(agreement.agreement_error.mean())
        said.append(f"agreement looked at {agreement.attrs['sampled_queries']} queries (a head ± {short(error)})")
    if distortion is not None and "rsa_error" in distortion:
        error = float(distortion.rsa_error.mean())
        said.append(f"distortion at {distortion.attrs['rows']} tokens beside all others (a head ± {short(error)})")
    return (
        f" A long text: {', '.join(said)}, drawn at random; fewer draws and steps, a control of agreement, transport and "
        "clusters alone."
        if said
        else ""
    )
