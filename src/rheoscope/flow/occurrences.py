"""Occurrences of words in sentences: the points of the last token of a word after every layer."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.flow.cloud import check_space
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Model, Text
from rheoscope.space.safe_arithmetic import at_least_float32

SENTENCES_PER_BATCH = {"cpu": 32, "cuda": 512}
"""Sentences per forward pass, whose points are held at all steps at once. A GPU waits for the start of every operation."""
OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Occurrences:
    """One word per sentence: its `points` after the embedding and every layer (`steps`), and the `ids` of its last token.

    `n_tokens` are the lengths of the sentences. Points are centred on the mean of all occurrences. In the space `sphere` they
    are then normalised. `rounding` is the contribution of each point to the rounding error of a distance.
    """

    points: Float[Tensor, "p s d"]
    rounding: Float[Tensor, "p s"]
    ids: Int[Tensor, " s"]
    n_tokens: list[int]
    steps: tuple[str, ...]


@torch.no_grad()
def occurrences(
    model: Model,
    sentences: Sequence[Text],
    target_words: Sequence[object],
    space: str = "sphere",
    progress: OnProgress | None = None,
) -> Occurrences:
    """The points of one word in each sentence. In a list of token ids the word is the last token.

    >>> import rheoscope as rs
    >>> result = occurrences(rs.load(), ["The boat lay at the bank", "The loan of the bank"], ["bank", "bank"])
    >>> result.points.shape[:2], bool((result.points[0, 0] == result.points[0, 1]).all())
    (torch.Size([7, 2]), True)
    """
    check_space(space)
    sentence_ids = [model.ids(sentence) for sentence in sentences]
    n_closing = count_closing_tokens(model) if any(isinstance(sentence, str) for sentence in sentences) else 0
    positions = [
        word_position(model, sentence, text_ids, target_word, n_closing)
        for sentence, text_ids, target_word in zip(sentences, sentence_ids, target_words, strict=True)
    ]
    batches, ids = [], []
    steps: tuple[str, ...] = ()
    size = SENTENCES_PER_BATCH.get(model.device.type, SENTENCES_PER_BATCH["cpu"])
    for start in range(0, len(sentences), size):
        traces = model.trace(sentence_ids[start : start + size])
        batch_positions = torch.tensor(positions[start : start + size], device=traces.points.device)
        point_indices = torch.tensor([*traces.input_steps, len(traces.steps) - 1], device=batch_positions.device)
        rows = torch.arange(len(batch_positions), device=batch_positions.device)
        batches.append(traces.points[rows[:, None], point_indices, batch_positions[:, None]])
        ids.append(traces.ids[rows.cpu(), batch_positions.cpu()])
        steps = tuple(str(traces.steps[index]) for index in point_indices.tolist())
        if progress is not None:
            progress(min(start + size, len(sentences)), len(sentences))
    points = torch.cat(batches).transpose(0, 1)
    return Occurrences(*centre_in_space(model, points, space), torch.cat(ids), list(map(len, sentence_ids)), steps)


def centre_in_space(
    model: Model, points: Float[Tensor, "p s d"], space: str
) -> tuple[Float[Tensor, "p s d"], Float[Tensor, "p s"]]:
    """The points in the space, centred on their mean, and the rounding error of each."""
    x = at_least_float32(model.view.final_norm.apply(points) if space == "normed" else points)
    if not bool(x.isfinite().all()):
        raise RheoscopeError(
            Message("the points of these sentences contain NaN or infinity"),
            Advice("rs.load(…, dtype='float32')", "--dtype float32"),
        )
    centred = x.double() - x.double().mean(-2, keepdim=True)
    rounding = 16 * torch.finfo(model.view.dtype).eps * x.double().norm(dim=-1)
    if space != "sphere":
        return centred, rounding
    length = centred.norm(dim=-1).clamp(min=1e-30)
    return centred / length[..., None], rounding / length


def distances_between(x: Float[Tensor, "*p n d"], rounding: Float[Tensor, "*p n"]) -> Float[Tensor, "*p n n"]:
    """‖x_i − x_j‖ for few points. A distance within the rounding error is 0."""
    distance = (x[..., :, None, :] - x[..., None, :, :]).norm(dim=-1)
    return torch.where(distance > rounding[..., :, None] + rounding[..., None, :], distance, 0)


def word_position(model: Model, sentence: Text, ids: Int[Tensor, " n"], target_word: object, n_closing: int) -> int:
    """The position of the last token of the word's last occurrence in a sentence with these ids."""
    if not isinstance(sentence, str):
        return len(ids) - 1
    ends = [match.end() for match in whole_word(str(target_word)).finditer(sentence)]
    if not ends:
        raise RheoscopeError(
            Message(
                "the sentence {sentence!r} must contain the word {word!r}", sentence=sentence, word=str(target_word)
            )
        )
    n_read = len(ids if ends[-1] == len(sentence) else model.ids(sentence[: ends[-1]]))
    return n_read - 1 - n_closing


@lru_cache(maxsize=4096)
def whole_word(target_word: str) -> re.Pattern[str]:
    """The pattern of a word that is not part of a longer one."""
    return re.compile(rf"(?<!\w){re.escape(target_word)}(?!\w)")


def count_closing_tokens(model: Model) -> int:
    """The number of special tokens that the tokenizer appends to every text."""
    reversed_pairs = zip(model.encode("a")[::-1], model.encode("b")[::-1], strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], reversed_pairs)))
