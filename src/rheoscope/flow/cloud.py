"""The clouds that an analysis of the flow looks at: which points, which tokens, in which space.

raw       x as it is             lengths, costs, W₂
normed    after the final norm   what the unembedding reads
sphere    x / ‖x‖                directions alone
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.shapes import RheoscopeError
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View

SPACES = ("raw", "normed", "sphere")


@dataclass(frozen=True, eq=False)
class Clouds:
    """One text as a sequence of clouds in a space.

    `steps` are their labels, `tokens` the places of the tokens that stand in them, `words` their texts.

    Iterating gives one cloud (n, d) after the other in float32 or better, so that an analysis of single clouds never holds
    them all; `points` (p, n, d) are all of them.
    """

    trace: Trace
    point_indices: list[int]
    positions: list[int]
    space: str
    attributes: dict[str, Any]

    def __len__(self) -> int:
        return len(self.point_indices)

    def __iter__(self) -> Iterator[Float[Tensor, "n d"]]:
        return (
            to_space(self.trace.view, self.trace.points[index, self.positions], self.space)
            for index in self.point_indices
        )

    @property
    def points(self) -> Float[Tensor, "p n d"]:
        return to_space(
            self.trace.view, self.trace.points[torch.tensor(self.point_indices)[:, None], self.positions], self.space
        )

    @property
    def steps(self) -> tuple[str, ...]:
        return tuple(str(self.trace.steps[index]) for index in self.point_indices)

    @property
    def token_texts(self) -> list[str]:
        return [self.trace.tokens[position] for position in self.positions]

    @property
    def types(self) -> Int[Tensor, " n"]:
        """Which type every token is, numbered as they first come: tokens of one id are one type."""
        ids = [int(self.trace.ids[position]) for position in self.positions]
        type_of_id = {token_id: number for number, token_id in enumerate(dict.fromkeys(ids))}
        return torch.tensor([type_of_id[token_id] for token_id in ids])

    @property
    def type_texts(self) -> list[str]:
        """The text of every type, in the order of their numbers."""
        return list(
            {int(self.trace.ids[position]): self.trace.tokens[position] for position in self.positions}.values()
        )


def select_clouds(
    trace: Trace, space: str = "raw", grain: str = "half", keep_massive: bool = False, min_tokens: int = 1
) -> Clouds:
    """The clouds of a Trace in a space, massive tokens dropped and listed unless `keep_massive`.

    `grain="half"` has every step, `"layer"` the embedding and the end of every layer. Fewer than `least` tokens are
    refused: the analysis would have nothing to say.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> select_clouds(model.trace("The keys to the cabinet"), "sphere", "layer").points.norm(dim=-1).max().item() <= 1.0001
    True
    """
    check_space(space)
    point_indices = points_at_grain(trace, grain)
    positions = trace.valid_mask(keep_massive, min_tokens).nonzero()[:, 0].tolist()
    if not all(bool(extreme.isfinite()) for extreme in trace.points.aminmax()):  # NaN is the least and the largest
        raise RheoscopeError("the points of this text hold NaN or infinity; type dtype='float32', or another text")
    attributes = {
        "space": space,
        "grain": grain,
        "massive": trace.massive_tokens(),
        "keep_massive": int(keep_massive),
    }
    return Clouds(trace, point_indices, positions, space, attributes | trace.provenance)


def type_means(x: Float[Tensor, "n d"], types: Int[Tensor, " n"]) -> Float[Tensor, "t d"]:
    """One point a type, the mean of its occurrences, in float64: a text that repeats itself has the same ones.

    >>> type_means(torch.tensor([[1.0], [3.0], [9.0]]), torch.tensor([0, 0, 1])).tolist()
    [[2.0], [9.0]]
    """
    types = types.to(x.device)
    counts = types.bincount().double()
    return x.new_zeros(len(counts), x.shape[-1], dtype=torch.float64).index_add_(0, types, x.double()) / counts[:, None]


def check_space(space: str) -> None:
    """Refuse a space that there is not."""
    if space not in SPACES:
        raise RheoscopeError(f"unknown space {space!r}; type one of {', '.join(SPACES)}")


def points_at_grain(trace: Trace | Traces, grain: str) -> list[int]:
    """Which points: every one (`half`), or the embedding and the end of every layer (`layer`)."""
    if grain == "half":
        return list(range(len(trace.steps)))
    if grain == "layer":
        return [*trace.input_steps, len(trace.steps) - 1]
    raise RheoscopeError(f"unknown grain {grain!r}; type 'layer' or 'half'")


def to_space(view: View, points: Float[Tensor, "*p n d"], space: str) -> Float[Tensor, "*p n d"]:
    """Points as they stand in a space, in float32 or better."""
    check_space(space)
    if space == "normed":
        with torch.no_grad():
            points = view.final_norm.apply(points)
    points = at_least_float32(points)
    return points / points.norm(dim=-1, keepdim=True).clamp(min=1e-30) if space == "sphere" else points
