"""Pairs of a source and a target, as the card of an encoder-decoder reads them. A source may come without a target."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.running.encoder_decoder import EncoderDecoder
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Text

SOURCES_PER_BATCH = 16
OUTPUT_RATIO, EXTRA_OUTPUT = 2, 8
"""A greedy output ends after at most 2 n + 8 tokens, where n is the number of tokens of the longest source of its batch."""
MIN_TARGET_TOKENS = 4
"""Pairs with shorter greedy outputs are left out: a cloud of fewer tokens has no distances to compare."""
OWN_TARGETS = Advice("rs.card(model, [(source, target), …])", "--texts FILE")


@dataclass(frozen=True, eq=False)
class TextPair:
    """A source and its target. `is_generated` marks a target that is the model's own greedy output."""

    source: Text
    target: Text
    is_generated: bool = False

    @property
    def digest_text(self) -> str | None:
        """What names the pair: its texts, or the source alone if the target follows from it. None for token ids."""
        if not isinstance(self.source, str):
            return None
        if self.is_generated:
            return self.source
        return f"{self.source}\t{self.target}" if isinstance(self.target, str) else None


def is_pair(item: Any) -> bool:
    """Whether an item is a pair (source, target), and not the token ids of one text.

    >>> is_pair(("a", "b")), is_pair(([1, 2], [3])), is_pair((1, 2)), is_pair("a")
    (True, True, False, False)
    """
    return isinstance(item, TextPair) or (
        isinstance(item, tuple) and len(item) == 2 and not any(isinstance(side, Integral) for side in item)
    )


def split_line(line: str) -> "str | tuple[str, str]":
    """A line with one tab as a source and a target; any other line as a source.

    >>> split_line("a house\\tune maison"), split_line("a house")
    (('a house', 'une maison'), 'a house')
    """
    source, tab, target = line.partition("\t")
    return (source.strip(), target.strip()) if tab and target.strip() and "\t" not in target else line


def text_pairs(
    model: EncoderDecoder, items: Sequence[Any], progress: Callable[[int, int], None] | None = None
) -> list[TextPair]:
    """Every item as a pair. The target of a source that has none is the model's own greedy output."""
    pairs = {index: _given_pair(item) for index, item in enumerate(items) if is_pair(item)}
    sources = [index for index in range(len(items)) if index not in pairs]
    for start in range(0, len(sources), SOURCES_PER_BATCH):
        batch = sources[start : start + SOURCES_PER_BATCH]
        targets = greedy_outputs(model, [items[index] for index in batch])
        pairs |= {index: TextPair(items[index], ids, True) for index, ids in zip(batch, targets, strict=True)}
        if progress is not None:
            progress(len(pairs), len(items))
    return [pairs[index] for index in range(len(items))]


def _given_pair(item: Any) -> TextPair:
    return item if isinstance(item, TextPair) else TextPair(*item)


def greedy_outputs(model: EncoderDecoder, sources: Sequence[Text]) -> list[torch.Tensor]:
    """The greedy output for each of some sources, as token ids."""
    ids = [model.source_ids(source) for source in sources]
    context = model.view.context_length
    limit = OUTPUT_RATIO * max(map(len, ids)) + EXTRA_OUTPUT
    return model.greedy_targets(ids, limit if context is None else min(limit, context - 1))


def long_enough(pairs: Sequence[TextPair]) -> list[TextPair]:
    """The pairs without those whose greedy output is too short for a cloud. Raises if most outputs are."""
    long_pairs = [pair for pair in pairs if not pair.is_generated or len(pair.target) >= MIN_TARGET_TOKENS]
    if 2 * len(long_pairs) < len(pairs):
        raise RheoscopeError(
            Message(
                "the model's own greedy output has fewer than {low} tokens for {short} of {total} sources; give targets",
                low=MIN_TARGET_TOKENS,
                short=len(pairs) - len(long_pairs),
                total=len(pairs),
            ),
            OWN_TARGETS,
        )
    return long_pairs
