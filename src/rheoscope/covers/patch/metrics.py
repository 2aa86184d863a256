"""How far a prediction is from one text's prediction on the way to another's: the metrics of `patch`, and their answers."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Model

ANSWER_SEPARATOR = "|"


@dataclass(frozen=True, eq=False)
class Answers:
    """The answer of the text, the answer of the other text, and the log probabilities that the model gives after the text."""

    clean: int
    corrupt: int
    clean_log_probs: Float[Tensor, " v"]


Measure = Callable[[Float[Tensor, "b v"], Answers], Float[Tensor, " b"]]
"""A number for each row of log probabilities."""


def logit_difference(log_probs: Float[Tensor, "b v"], answers: Answers) -> Float[Tensor, " b"]:
    """The logit of the text's answer minus that of the other text's answer."""
    return log_probs[:, answers.clean] - log_probs[:, answers.corrupt]


def probability(log_probs: Float[Tensor, "b v"], answers: Answers) -> Float[Tensor, " b"]:
    """The probability of the text's answer."""
    return log_probs[:, answers.clean].exp()


def loss(log_probs: Float[Tensor, "b v"], answers: Answers) -> Float[Tensor, " b"]:
    """−log p of the text's answer, in nats."""
    return -log_probs[:, answers.clean]


def divergence(log_probs: Float[Tensor, "b v"], answers: Answers) -> Float[Tensor, " b"]:
    """KL(prediction after the text ‖ prediction), in nats."""
    p = answers.clean_log_probs
    return (p.exp() * (p - log_probs)).sum(-1)


METRICS: dict[str, Measure] = {
    "logit_diff": logit_difference,
    "prob": probability,
    "kl": divergence,
    "loss": loss,
}


def find_answers(
    model: Model, answers: str, clean_log_probs: Float[Tensor, " v"], corrupt_log_probs: Float[Tensor, " v"]
) -> Answers:
    """The answers written as " on| in", or the likeliest token after each text.

    If both texts have the same likeliest token, the other text's answer is its second likeliest.
    """
    if not answers:
        clean = int(clean_log_probs.argmax())
        corrupt = next(token for token in corrupt_log_probs.topk(2).indices.tolist() if token != clean)
        return Answers(clean, corrupt, clean_log_probs)
    parts = answers.split(ANSWER_SEPARATOR)
    if len(parts) != 2:
        raise RheoscopeError(
            Message("answers must be two, separated by |, got {received!r}", received=answers),
            Advice('answers=" on| in"', '--answers " on| in"'),
        )
    clean, corrupt = (answer_token(model, part) for part in parts)
    if clean == corrupt:
        raise RheoscopeError(
            Message("the two answers are the same token {token!r}", token=parts[0]), use(answers=" on| in")
        )
    return Answers(clean, corrupt, clean_log_probs)


def answer_token(model: Model, answer: str) -> int:
    """The id of an answer; raises if the answer is not one token."""
    special_tokens = model.encode("")
    ids = [token for token in model.encode(answer) if token not in special_tokens]
    if len(ids) != 1:
        raise RheoscopeError(
            Message(
                "the answer {answer!r} is {n} tokens ({tokens}), expected one token of the model's vocabulary",
                answer=answer,
                n=len(ids),
                tokens=" ".join(map(repr, model.token_strings(ids))),
            ),
            use(answers=" on| in"),
        )
    return ids[0]
