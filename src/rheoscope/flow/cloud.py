"""Selection of the clouds that a flow analysis uses: points, tokens and space.

raw       x itself               norms, costs, W₂
normed    after the final norm   the input of the unembedding
sphere    x / ‖x‖                directions only
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View

SPACES = ("raw", "normed", "sphere")


@dataclass(frozen=True, eq=False)
class Clouds:
    """One text as a sequence of clouds in a space.

    `steps` are the labels of the clouds, `positions` the positions of their tokens, `token_texts` the texts of these tokens.

    Iterating yields one cloud (n, d) at a time in float32 or better, so that not all clouds are in memory. `points` holds all
    clouds (p, n, d).
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
        """The type of every token, numbered by first occurrence. Tokens with equal ids have the same type."""
        ids = [int(self.trace.ids[position]) for position in self.positions]
        type_of_id = {token_id: number for number, token_id in enumerate(dict.fromkeys(ids))}
        return torch.tensor([type_of_id[token_id] for token_id in ids])

    @property
    def type_texts(self) -> list[str]:
        """The text of every type, in the order of the type numbers."""
        return list(
            {int(self.trace.ids[position]): self.trace.tokens[position] for position in self.positions}.values()
        )


def select_clouds(
    trace: Trace, space: str = "raw", grain: str = "half", keep_massive: bool = False, min_tokens: int = 1
) -> Clouds:
    """The clouds of a Trace in a space. Massive tokens are left out and listed in `attributes`, unless `keep_massive`.

    `grain="half"` selects every step, `"layer"` the embedding and the end of every layer. Fewer than `min_tokens` tokens raise an
    error.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> select_clouds(model.trace("The keys to the cabinet"), "sphere", "layer").points.norm(dim=-1).max().item() <= 1.0001
    True
    """
    check_space(space)
    point_indices = points_at_grain(trace, grain)
    positions = trace.valid_mask(keep_massive, min_tokens).nonzero()[:, 0].tolist()
    if not all(bool(extreme.isfinite()) for extreme in trace.points.aminmax()):  # aminmax propagates NaN
        raise RheoscopeError(
            Message("the points of this text contain NaN or infinity"),
            Advice("rs.load(…, dtype='float32')", "--dtype float32"),
        )
    attributes = {
        "space": space,
        "grain": grain,
        "massive": trace.massive_tokens(),
        "keep_massive": int(keep_massive),
    }
    return Clouds(trace, point_indices, positions, space, attributes | trace.provenance)


def type_means(x: Float[Tensor, "n d"], types: Int[Tensor, " n"]) -> Float[Tensor, "t d"]:
    """One point per type: the mean of its occurrences, in float64.

    >>> type_means(torch.tensor([[1.0], [3.0], [9.0]]), torch.tensor([0, 0, 1])).tolist()
    [[2.0], [9.0]]
    """
    types = types.to(x.device)
    counts = types.bincount().double()
    return x.new_zeros(len(counts), x.shape[-1], dtype=torch.float64).index_add_(0, types, x.double()) / counts[:, None]


def check_space(space: str) -> None:
    """Raise an error if the space is unknown."""
    if space not in SPACES:
        raise RheoscopeError(
            Message(
                "{name} must be one of {expected}, got {received!r}",
                name="space",
                expected=", ".join(SPACES),
                received=space,
            ),
            use(space=SPACES[0]),
        )


def points_at_grain(trace: Trace | Traces, grain: str) -> list[int]:
    """The indices of the points: all (`half`), or the embedding and the end of every layer (`layer`)."""
    if grain == "half":
        return list(range(len(trace.steps)))
    if grain == "layer":
        return [*trace.input_steps, len(trace.steps) - 1]
    raise RheoscopeError(
        Message(
            "{name} must be one of {expected}, got {received!r}", name="grain", expected="layer, half", received=grain
        ),
        use(grain="layer"),
    )


def to_space(view: View, points: Float[Tensor, "*p n d"], space: str) -> Float[Tensor, "*p n d"]:
    """The points in a space, in float32 or better."""
    check_space(space)
    if space == "normed":
        with torch.no_grad():
            points = view.final_norm.apply(points)
    points = at_least_float32(points)
    return points / points.norm(dim=-1, keepdim=True).clamp(min=1e-30) if space == "sphere" else points
