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
from rheoscope.space.safe_arithmetic import exact

AT_ONCE = 32
"""Sentences of one forward pass: points of all steps are there for these alone."""
Progress = Callable[[int, int], None]


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
    words: Sequence[object],
    space: str = "sphere",
    progress: Progress | None = None,
) -> Occurrences:
    """Where a word lies in each of many sentences; of a list of ids the word is the last token.

    >>> import rheoscope as rs
    >>> seen = occurrences(rs.load(), ["The boat lay at the bank", "The loan of the bank"], ["bank", "bank"])
    >>> seen.points.shape[:2], bool((seen.points[0, 0] == seen.points[0, 1]).all())
    (torch.Size([7, 2]), True)
    """
    check_space(space)
    places = [place(model, sentence, word) for sentence, word in zip(sentences, words, strict=True)]
    found, ids = [], []
    steps: tuple[str, ...] = ()
    for start in range(0, len(sentences), AT_ONCE):
        traces = model.trace(list(sentences[start : start + AT_ONCE]))
        at = torch.tensor(places[start : start + AT_ONCE], device=traces.points.device)
        ends = torch.tensor([*traces.where, len(traces.steps) - 1], device=at.device)
        rows = torch.arange(len(at), device=at.device)
        found.append(traces.points[rows[:, None], ends, at[:, None]])
        ids.append(traces.ids[rows.cpu(), at.cpu()])
        steps = tuple(str(traces.steps[end]) for end in ends.tolist())
        if progress is not None:
            progress(min(start + AT_ONCE, len(sentences)), len(sentences))
    points = torch.cat(found).transpose(0, 1)
    return Occurrences(*placed(model, points, space), torch.cat(ids), steps)


def placed(
    model: Model, points: Float[Tensor, "p s d"], space: str
) -> tuple[Float[Tensor, "p s d"], Float[Tensor, "p s"]]:
    """Points of a space around their mean, and how much of a distance between them may be rounding."""
    x = exact(model.view.final_norm.own(points) if space == "normed" else points)
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
    apart = (x[..., :, None, :] - x[..., None, :, :]).norm(dim=-1)
    return torch.where(apart > rounding[..., :, None] + rounding[..., None, :], apart, 0)


def place(model: Model, sentence: Text, word: object) -> int:
    """Which token of a sentence is the last one of the word, where it stands last."""
    if not isinstance(sentence, str):
        return len(sentence) - 1
    found = list(re.finditer(rf"(?<!\w){re.escape(str(word))}(?!\w)", sentence))
    if not found:
        raise RheoscopeError(f"{str(word)!r} does not stand in {sentence!r}; write a sentence that has the word in it")
    return len(model.ids(sentence[: found[-1].end()])) - 1 - closing(model)


def closing(model: Model) -> int:
    """How many special tokens the tokenizer puts behind every text."""
    ends = zip(model.encode("a")[::-1], model.encode("b")[::-1], strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], ends)))
