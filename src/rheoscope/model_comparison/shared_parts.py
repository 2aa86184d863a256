"""What two models have in common. Heads are compared by their number only if the models share coordinates and shapes."""

from dataclasses import dataclass

import torch

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_number
from rheoscope.space.safe_arithmetic import safe_divide
from rheoscope.space.trace import Trace
from rheoscope.space.view import View

MIN_COSINE = 0.25
"""The smallest cosine of two embeddings that are written in the same coordinates. Independent ones have about 0."""
SAMPLED_ROWS = 4096
"""The number of tokens whose embeddings are compared."""


@dataclass(frozen=True)
class SharedParts:
    """Why two models do not share a part; None if they share it.

    `coordinates`: both write to the same basis of E. `heads`: both have the same layers and heads, of the same widths.
    """

    coordinates: Message | None
    heads: Message | None

    @property
    def same_heads(self) -> bool:
        """Whether a head is compared with the one of the same number."""
        return self.coordinates is None and self.heads is None

    @property
    def reasons(self) -> list[Message]:
        """Every reason."""
        return [reason for reason in (self.coordinates, self.heads) if reason is not None]


def shared_parts(first: View, second: View) -> SharedParts:
    """What two models share, from their weights."""
    return SharedParts(coordinate_reason(first, second), head_reason(first, second))


def coordinate_reason(first: View, second: View) -> Message | None:
    """Why two models have no common coordinates, as shown by their widths and their embeddings."""
    if first.width != second.width:
        return Message("the widths are {first} and {second}", first=first.width, second=second.width)
    similarity = embedding_cosine(first, second)
    if similarity >= MIN_COSINE:
        return None
    return Message(
        "the token embeddings have cosine {cosine}, so the coordinates differ", cosine=format_number(similarity)
    )


def embedding_cosine(first: View, second: View) -> float:
    """The cosine of both tables of token embeddings after centring, on a sample of tokens. 1 without a vocabulary."""
    n_ids = min(len(first.embed), len(second.embed))
    if not n_ids:
        return 1.0
    rows = torch.linspace(0, n_ids - 1, min(n_ids, SAMPLED_ROWS)).round().long()
    x, y = (view.embed[rows.to(view.embed.device)].detach().cpu().double() for view in (first, second))
    x, y = x - x.mean(0), y - y.mean(0)
    return float(safe_divide((x * y).sum(), x.norm() * y.norm()))


def head_reason(first: View, second: View) -> Message | None:
    """Why heads of the same number do not correspond."""
    if first.layers != second.layers:
        return Message("there are {first} and {second} layers", first=first.layers, second=second.layers)
    for layer, (heads, other) in enumerate(zip(first.layer_heads, second.layer_heads, strict=True)):
        shapes = [(block.n_heads, block.W_Q.shape[-1], block.W_V.shape[-1]) for block in (heads, other)]
        if shapes[0] != shapes[1]:
            return Message(
                "layer {layer} has {first} heads of width {first_width} in one model and {second} of width {second_width} in the "
                "other",
                layer=layer,
                first=shapes[0][0],
                first_width=shapes[0][1],
                second=shapes[1][0],
                second_width=shapes[1][1],
            )
    return None


def token_reason(first: Trace, second: Trace) -> Message | None:
    """Why the tokens of a text do not correspond."""
    if first.tokens == second.tokens:
        return None
    if len(first) != len(second):
        return Message(
            "the vocabularies differ: the first text that they split differently has {first} and {second} tokens",
            first=len(first),
            second=len(second),
        )
    index = next(index for index in range(len(first)) if first.tokens[index] != second.tokens[index])
    return Message(
        "the vocabularies differ: token {index} of a text is {first!r} in one and {second!r} in the other",
        index=index,
        first=first.tokens[index],
        second=second.tokens[index],
    )


def vocabulary_reason(first: Trace, second: Trace) -> Message | None:
    """Why predictions on a text with the same tokens cannot be compared."""
    if not first.view.predicts_tokens or not second.view.predicts_tokens:
        return Message("not both models predict tokens")
    if torch.equal(first.ids.cpu(), second.ids.cpu()):
        return None
    return Message("the vocabularies number their tokens differently")
