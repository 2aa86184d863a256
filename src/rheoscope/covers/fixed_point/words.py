"""Text about fixed points: would the layers converge if they were repeated?"""

import numpy as np

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_number
from rheoscope.space.questions import Question
from rheoscope.space.results import Results
from rheoscope.space.training_quantity import TrainingQuantity
from rheoscope.space.words import Words
from rheoscope.statistics.verdict import NO, UNCLEAR, YES, Verdict, control_text


def judge(results: Results, question: Question) -> Verdict:
    layers = results.datasets["fixed_point"]
    radius, error = layers.jacobian_radius.values, layers.jacobian_radius_error.values
    is_contracting, is_expanding = radius + error < 1, radius - error > 1
    answer = YES if is_contracting.all() else NO if is_expanding.any() else UNCLEAR
    control_note = control_text(
        results.control_values("fixed_point", lambda dataset: float(dataset.jacobian_radius.median()))
    )
    median_layer = int(np.argsort(radius)[len(radius) // 2])
    line = Message(
        "{n} of {n_layers} tested layers contract locally. Repeating L{layer} amplifies a small change up to {radius} ± {error} "
        "times, apart from directions that its norm preserves{control}. "
        "One pass rotates tokens by {turn} rad (permuted displacements {turn_null}).",
        n=int(is_contracting.sum()),
        n_layers=len(radius),
        layer=int(layers.layer[median_layer]),
        radius=format_number(float(radius[median_layer])),
        error=format_number(float(error[median_layer])),
        control=control_note,
        turn=format_number(float(layers.rotation_angle.median())),
        turn_null=format_number(float(layers.rotation_angle_null.median())),
    )
    return Verdict(question.question, answer, line, question.deeper)


QUESTION = Question(
    order=6,
    name="convergence",
    question=Message("Would the layers converge if repeated?"),
    needs=("fixed_point",),
    deeper="rheoscope analyse fixed_point",
    judge=judge,
    required_fields=("rotation_angle_null",),
    n_statements=0,
)


TRAINING_QUANTITIES = (
    TrainingQuantity(
        5,
        "fixed_point",
        "residual",
        "residual",
        "",
        Message("‖T(X) − X‖/‖X‖ of a layer, mean over layers"),
        {"applications": 1, "iterations": 0, "draws": 0},
    ),
)
WORDS = Words(training_quantities=TRAINING_QUANTITIES, question=QUESTION)
