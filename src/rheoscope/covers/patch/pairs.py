"""Pairs of texts that are patched together: as many tokens, two answers, and named groups of tokens."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rheoscope.covers.patch.metrics import METRICS, Answers, find_answers
from rheoscope.covers.patch.spans import span_groups
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.picture.token_labels import display_token
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Text
from rheoscope.space.traces import Traces

REST = "rest"
"""The group of all tokens that belong to no named span."""


@dataclass(frozen=True, eq=False)
class Pair:
    """Two texts with as many tokens, the answers " on| in" (or "" for the likeliest tokens), and named pieces of the text.

    `spans` maps a name to a piece of the clean text: {"subject": "men"}. `name` is what errors call it: "line 3", "pair 2".

    >>> import rheoscope as rs
    >>> rs.Pair("The men who", "The man who", " are| is", {"subject": "men"}).answers
    ' are| is'
    """

    clean: Text
    corrupt: Text
    answers: str = ""
    spans: Mapping[str, str] = field(default_factory=dict)
    name: str = ""


@dataclass(frozen=True, eq=False)
class PairBatch:
    """Pairs of one length in a model: both texts as Traces, the answers, and the groups of tokens that are patched together.

    `groups[p, s]` are the tokens of group s in pair p. `names` are the groups. `token` is the position of the prediction.
    """

    model: RunnableModel
    clean: Traces
    corrupt: Traces
    answers: Answers
    groups: Bool[Tensor, "p s n"]
    names: tuple[str, ...]
    metric: str
    token: int
    clean_log_probs: Float[Tensor, "p v"]
    corrupt_log_probs: Float[Tensor, "p v"]

    def __len__(self) -> int:
        return len(self.clean)

    @property
    def n_tokens(self) -> int:
        return self.clean.ids.shape[1]

    @cached_property
    def measure(self) -> Callable[[Float[Tensor, "*c p v"]], Float[Tensor, "*c p"]]:
        """The metric of rows of log probabilities, one row for every pair."""
        measure = METRICS[self.metric]
        return lambda log_probs: measure(log_probs, self.answers)

    @cached_property
    def metrics(self) -> Float[Tensor, "2 p"]:
        """The metric after the clean and after the corrupt texts."""
        return self.measure(torch.stack([self.clean_log_probs, self.corrupt_log_probs]))


def batch_pairs(
    model: RunnableModel, pairs: Sequence[Pair], answers: str, metric: str, token: int, max_tokens: int
) -> list[PairBatch]:
    """The pairs in batches of equal length. Raises, with the line of the pair, for pairs that cannot be aligned."""
    ids = [check_lengths(model, pair) for pair in pairs]
    names = group_names(pairs, [len(pair_ids[0]) for pair_ids in ids])
    lengths = [len(clean) for clean, _ in ids]
    return [
        open_pairs(model, [pairs[index] for index in indices], answers, metric, token, names)
        for length in sorted(set(lengths))
        for indices in _chunks([index for index, n in enumerate(lengths) if n == length], max(1, max_tokens // length))
    ]


def _chunks(indices: list[int], size: int) -> Iterator[list[int]]:
    return (indices[start : start + size] for start in range(0, len(indices), size))


def check_lengths(model: RunnableModel, pair: Pair) -> tuple[Tensor, Tensor]:
    """The token ids of both texts. Raises if their numbers of tokens differ."""
    clean, corrupt = model.ids(pair.clean), model.ids(pair.corrupt)
    if len(clean) != len(corrupt):
        raise about_pair(pair, unequal_lengths(len(clean), len(corrupt)).message)
    return clean, corrupt


def unequal_lengths(expected: int, received: int) -> RheoscopeError:
    """The error for two texts with different numbers of tokens."""
    return RheoscopeError(
        Message(
            "other must have as many tokens as the text ({expected}), got {received}; use another text",
            expected=expected,
            received=received,
        )
    )


def group_names(pairs: Sequence[Pair], lengths: Sequence[int]) -> tuple[str, ...]:
    """The names of the token groups: those of the spans, or the positions if no pair has spans and all have one length."""
    first = pairs[0]
    for pair, length in zip(pairs, lengths, strict=True):
        if list(pair.spans) != list(first.spans):
            raise about_pair(
                pair,
                Message(
                    "every pair must have the spans of the first one ({expected}), got {received}",
                    expected=", ".join(first.spans) or Message("none"),
                    received=", ".join(pair.spans) or Message("none"),
                ),
            )
        if not first.spans and length != lengths[0]:
            raise about_pair(
                pair,
                Message(
                    "pairs without spans must all have one length: the first has {expected} tokens, this one {received}",
                    expected=lengths[0],
                    received=length,
                ),
                Advice('"spans": {"subject": "men"}'),
            )
    return (*first.spans, REST) if first.spans else tuple(map(str, range(lengths[0])))


def open_pairs(
    model: RunnableModel, pairs: Sequence[Pair], answers: str, metric: str, token: int, names: tuple[str, ...]
) -> PairBatch:
    """A batch of pairs of one length, run in the model."""
    clean, corrupt = (
        model.trace([model.ids(text) for text in texts])
        for texts in ([pair.clean for pair in pairs], [pair.corrupt for pair in pairs])
    )
    groups = torch.stack([token_groups(pair, tokens) for pair, tokens in zip(pairs, clean.tokens, strict=True)])
    return join_texts(model, clean, corrupt, groups, names, pairs, answers, metric, token)


def join_texts(
    model: RunnableModel,
    clean: Traces,
    corrupt: Traces,
    groups: Bool[Tensor, "p s n"],
    names: tuple[str, ...],
    pairs: Sequence[Pair],
    answers: str,
    metric: str,
    token: int,
) -> PairBatch:
    """Both texts of some pairs with their predictions and answers. `answers` are those of pairs without their own."""
    check_written_points(clean)
    log_probs = [model.run_batch(texts.ids)[:, token].double().log_softmax(-1).detach() for texts in (clean, corrupt)]
    all_answers = [
        named_answers(model, pair, answers, rows[None, 0], rows[None, 1])
        for pair, rows in zip(pairs, torch.stack(log_probs, 1), strict=True)
    ]
    joined_answers = Answers(
        torch.cat([pair_answers.clean for pair_answers in all_answers]),
        torch.cat([pair_answers.corrupt for pair_answers in all_answers]),
        log_probs[0],
    )
    on_device = groups.to(clean.points.device)
    return PairBatch(model, clean, corrupt, joined_answers, on_device, names, metric, token, *log_probs)


def check_written_points(texts: Traces) -> None:
    """Raise for models whose layers write into several streams (Gemma 3n): nothing can be put in place of their points."""
    if any(step.is_end_of_layer for step in texts.unread_steps):
        raise RheoscopeError(
            Message(
                "the layers of {model} write into several streams, so its points and MLPs cannot be patched; swap the weights or values "
                "of its heads",
                model=texts.view.name,
            ),
            Advice("rs.relation_swap(model, trace, other)", "rheoscope analyse relation_swap TEXT --other OTHER"),
        )


def named_answers(
    model: RunnableModel, pair: Pair, answers: str, clean: Float[Tensor, "1 v"], corrupt: Float[Tensor, "1 v"]
) -> Answers:
    """The answers of one pair; an error names its line."""
    try:
        return find_answers(model, [pair.answers or answers], clean, corrupt)
    except RheoscopeError as error:
        raise about_pair(pair, error.message, error.advice) from None


def token_groups(pair: Pair, tokens: Sequence[str]) -> Bool[Tensor, "s n"]:
    """The tokens of every group: those of each span and the rest, or each token by itself."""
    if not pair.spans:
        return torch.eye(len(tokens), dtype=torch.bool)
    try:
        rows = span_groups(tokens, pair.spans)
    except RheoscopeError as error:
        raise about_pair(pair, error.message, error.advice) from None
    return torch.cat([rows, ~rows.any(0, keepdim=True)])


def position_labels(batches: Sequence[PairBatch]) -> list[str]:
    """The names of the groups. A position has its token, or the tokens of the first pair with … if pairs differ there."""
    names = batches[0].names
    if names[-1] == REST:
        return list(names)
    columns = zip(*(tokens for batch in batches for tokens in batch.clean.tokens), strict=True)
    return [tokens[0] if len(set(tokens)) == 1 else f"{display_token(tokens[0])}…" for tokens in map(list, columns)]


def about_pair(pair: Pair, message: str, advice: Advice | None = None) -> RheoscopeError:
    """An error about a pair, with its name if it is one of several."""
    located = Message("{place}: {problem}", place=pair.name, problem=message) if pair.name else message
    return RheoscopeError(located) if advice is None else RheoscopeError(located, advice)
