"""Text about energy: do heads climb the gradient of their own energy?"""

import numpy as np

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_number
from rheoscope.space.questions import Question
from rheoscope.space.results import Results
from rheoscope.space.words import Words
from rheoscope.statistics.statement import from_moments
from rheoscope.statistics.verdict import Verdict, control_text, null_text


def judge(results: Results, question: Question) -> Verdict:
    energy = results.datasets["energy"]
    cosine, null_sd = energy.cosine.values, energy.cosine_null_sd.values
    valid = np.isfinite(cosine) & (null_sd > 0)
    standard_error = float(np.sqrt((null_sd[valid] ** 2).sum())) / max(int(valid.sum()), 1)
    statement = from_moments("", "energy", float(cosine[valid].mean()), 0.0, standard_error)
    direction = Message("along") if statement.value > 0 else Message("against")
    line = Message(
        "Head updates point {direction} the gradient of their own energy (mean cosine {value}; random content {null}{control}). "
        "{n} of {n_heads} heads climb significantly.",
        direction=direction,
        value=format_number(statement.value),
        null=null_text(statement),
        control=control_text(results.control_values("energy", lambda dataset: float(dataset.cosine.mean()))),
        n=int(energy.gradient_like.sum()),
        n_heads=energy.gradient_like.size,
    )
    return question.from_claims([question.claim(statement, statement.value > 0, 0.05)], line)


QUESTION = Question(
    order=3,
    name="gradient",
    question=Message("Do tokens move along a gradient?"),
    needs=("energy",),
    deeper="rheoscope analyse energy",
    judge=judge,
)


WORDS = Words(question=QUESTION)
