"""How far a prediction is from one text's prediction on the way to another's: the metrics of `patch`, and their answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Model
from rheoscope.space.safe_arithmetic import safe_divide

ANSWER_SEPARATOR = "|"


@dataclass(frozen=True, eq=False)
class Answers:
    """For every pair: the answer of the text, that of the other text, and the model's log probabilities after the text."""

    clean: Int[Tensor, " p"]
    corrupt: Int[Tensor, " p"]
    clean_log_probs: Float[Tensor, "p v"]


Measure = Callable[[Float[Tensor, "*c p v"], Answers], Float[Tensor, "*c p"]]
"""A number for each row of log probabilities. Rows of one pair share their answers."""


def select_tokens(log_probs: Float[Tensor, "*c p v"], tokens: Int[Tensor, " p"]) -> Float[Tensor, "*c p"]:
    """The entry of one token in every row."""
    index = tokens.to(log_probs.device).expand(log_probs.shape[:-1])
    return log_probs.gather(-1, index[..., None])[..., 0]


def logit_difference(log_probs: Float[Tensor, "*c p v"], answers: Answers) -> Float[Tensor, "*c p"]:
    """The logit of the text's answer minus that of the other text's answer."""
    return select_tokens(log_probs, answers.clean) - select_tokens(log_probs, answers.corrupt)


def probability(log_probs: Float[Tensor, "*c p v"], answers: Answers) -> Float[Tensor, "*c p"]:
    """The probability of the text's answer."""
    return select_tokens(log_probs, answers.clean).exp()


def loss(log_probs: Float[Tensor, "*c p v"], answers: Answers) -> Float[Tensor, "*c p"]:
    """−log p of the text's answer, in nats."""
    return -select_tokens(log_probs, answers.clean)


def divergence(log_probs: Float[Tensor, "*c p v"], answers: Answers) -> Float[Tensor, "*c p"]:
    """KL(prediction after the text ‖ prediction), in nats."""
    p = answers.clean_log_probs
    return (p.exp() * (p - log_probs)).sum(-1)


def signed_share(changes: Float[Tensor, "*n"], total: Float[Tensor, ""]) -> Float[Tensor, "*n"]:
    """Changes of a metric as shares of its total change, which may be negative.

    >>> signed_share(torch.tensor([-1.0, 0.5]), torch.tensor(-2.0))
    tensor([ 0.5000, -0.2500])
    """
    return safe_divide(changes * total.sign(), total.abs())


METRICS: dict[str, Measure] = {
    "logit_diff": logit_difference,
    "prob": probability,
    "kl": divergence,
    "loss": loss,
}


def find_answers(
    model: Model,
    answers: Sequence[str],
    clean_log_probs: Float[Tensor, "p v"],
    corrupt_log_probs: Float[Tensor, "p v"],
) -> Answers:
    """For every pair, the answers written as " on| in". Without any: the likeliest token after each text.

    If both texts have the same likeliest token, the other text's answer is its second likeliest.
    """
    tokens = [
        answer_tokens(model, pair_answers) if pair_answers else likeliest_tokens(clean, corrupt)
        for pair_answers, clean, corrupt in zip(answers, clean_log_probs, corrupt_log_probs, strict=True)
    ]
    clean_tokens, corrupt_tokens = torch.tensor(tokens, device=clean_log_probs.device).unbind(1)
    return Answers(clean_tokens, corrupt_tokens, clean_log_probs)


def likeliest_tokens(clean_log_probs: Float[Tensor, " v"], corrupt_log_probs: Float[Tensor, " v"]) -> tuple[int, int]:
    """The likeliest token after each text, two different ones."""
    clean = int(clean_log_probs.argmax())
    return clean, next(token for token in corrupt_log_probs.topk(2).indices.tolist() if token != clean)


def answer_tokens(model: Model, answers: str) -> tuple[int, int]:
    """The ids of two answers; raises unless they are two different tokens."""
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
    return clean, corrupt


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
