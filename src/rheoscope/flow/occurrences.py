"""A word in its sentences: the token where it ends, and the points of that token after every layer."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.flow.cloud import check_space
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Model, Text
from rheoscope.space.safe_arithmetic import at_least_float32

SENTENCES_PER_BATCH = 32
"""Sentences of one forward pass: points of all steps are there for these alone."""
OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Occurrences:
    """One word a sentence: its `points` (p, s, d) after the embedding and every layer (`steps`), the `ids` of its last token.

    Points are centred on the mean of all occurrences; in the space `sphere` they are then directions. `rounding` (p, s) is how
    much of a distance may be nothing but rounding.
    """

    points: Float[Tensor, "p s d"]
    rounding: Float[Tensor, "p s"]
    ids: Int[Tensor, " s"]
    steps: tuple[str, ...]


@torch.no_grad()
def occurrences(
    model: Model,
    sentences: Sequence[Text],
    target_words: Sequence[object],
    space: str = "sphere",
    progress: OnProgress | None = None,
) -> Occurrences:
    """Where a word lies in each of many sentences; of a list of ids the word is the last token.

    >>> import rheoscope as rs
    >>> seen = occurrences(rs.load(), ["The boat lay at the bank", "The loan of the bank"], ["bank", "bank"])
    >>> seen.points.shape[:2], bool((seen.points[0, 0] == seen.points[0, 1]).all())
    (torch.Size([7, 2]), True)
    """
    check_space(space)
    positions = [
        word_position(model, sentence, target_word)
        for sentence, target_word in zip(sentences, target_words, strict=True)
    ]
    batches, ids = [], []
    steps: tuple[str, ...] = ()
    for start in range(0, len(sentences), SENTENCES_PER_BATCH):
        traces = model.trace(list(sentences[start : start + SENTENCES_PER_BATCH]))
        batch_positions = torch.tensor(positions[start : start + SENTENCES_PER_BATCH], device=traces.points.device)
        point_indices = torch.tensor([*traces.input_steps, len(traces.steps) - 1], device=batch_positions.device)
        rows = torch.arange(len(batch_positions), device=batch_positions.device)
        batches.append(traces.points[rows[:, None], point_indices, batch_positions[:, None]])
        ids.append(traces.ids[rows.cpu(), batch_positions.cpu()])
        steps = tuple(str(traces.steps[index]) for index in point_indices.tolist())
        if progress is not None:
            progress(min(start + SENTENCES_PER_BATCH, len(sentences)), len(sentences))
    points = torch.cat(batches).transpose(0, 1)
    return Occurrences(*centre_in_space(model, points, space), torch.cat(ids), steps)


def centre_in_space(
    model: Model, points: Float[Tensor, "p s d"], space: str
) -> tuple[Float[Tensor, "p s d"], Float[Tensor, "p s"]]:
    """Points of a space around their mean, and how much of a distance between them may be rounding."""
    x = at_least_float32(model.view.final_norm.apply(points) if space == "normed" else points)
    if not bool(x.isfinite().all()):
        raise RheoscopeError("the points of these sentences hold NaN or infinity; type dtype='float32'")
    centred = x.double() - x.double().mean(-2, keepdim=True)
    rounding = 16 * torch.finfo(model.view.dtype).eps * x.double().norm(dim=-1)
    if space != "sphere":
        return centred, rounding
    length = centred.norm(dim=-1).clamp(min=1e-30)
    return centred / length[..., None], rounding / length


def distances_between(x: Float[Tensor, "*p n d"], rounding: Float[Tensor, "*p n"]) -> Float[Tensor, "*p n n"]:
    """‖x_i − x_j‖ of few points, exactly 0 for equal ones; what may be rounding alone is 0."""
    distance = (x[..., :, None, :] - x[..., None, :, :]).norm(dim=-1)
    return torch.where(distance > rounding[..., :, None] + rounding[..., None, :], distance, 0)


def word_position(model: Model, sentence: Text, target_word: object) -> int:
    """Which token of a sentence is the last one of the word, where it stands last."""
    if not isinstance(sentence, str):
        return len(sentence) - 1
    matches = list(re.finditer(rf"(?<!\w){re.escape(str(target_word))}(?!\w)", sentence))
    if not matches:
        raise RheoscopeError(
            f"{str(target_word)!r} does not stand in {sentence!r}; write a sentence that has the word in it"
        )
    return len(model.ids(sentence[: matches[-1].end()])) - 1 - count_closing_tokens(model)


def count_closing_tokens(model: Model) -> int:
    """How many special tokens the tokenizer puts behind every text."""
    reversed_pairs = zip(model.encode("a")[::-1], model.encode("b")[::-1], strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], reversed_pairs)))
