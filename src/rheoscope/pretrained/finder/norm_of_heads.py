"""A norm between the outputs of all heads and their output matrix, on a tape."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.pretrained.finder.chains import Normalisation, Weight, frontier, norm_constants
from rheoscope.pretrained.finder.coordinates import NEAR, coordinate_map, from_token_rows, token_rows
from rheoscope.pretrained.finder.head_matrices import with_own_gain
from rheoscope.pretrained.finder.softmax_calls import SoftmaxCall
from rheoscope.pretrained.finder.tape import Tape, Value, replay
from rheoscope.shapes import RheoscopeError
from rheoscope.space.heads_norm import HeadsNorm


@dataclass(frozen=True, eq=False)
class HeadPlacement:
    """Where every coordinate of every head arrives, and with which factor."""

    index: Int[Tensor, "h e"]
    factor: Float[Tensor, "h e"]


def find_norm_of_heads(tape: Tape, call: SoftmaxCall, weight: Weight, behind: set[Value]) -> Normalisation | None:
    """The norm that the output matrix reads, if it reads one of the outputs of all heads; None if it reads the outputs."""
    (stage, *more) = frontier(tape, weight.source, behind, *call.outputs)
    if [stage, *more] == [call.output]:
        return None
    if isinstance(stage, Normalisation) and not more:
        inner = frontier(tape, stage.source, behind, *call.outputs)
        if all(isinstance(x, int) for x in inner):
            return stage
    raise RheoscopeError(Message("between the heads and their output matrix lies more than one norm"))


def read_norm_of_heads(tape: Tape, call: SoftmaxCall, norm: Normalisation, target: Value) -> HeadsNorm:
    """The norm with everything up to the input of the output matrix, in the coordinates of that input."""
    placement = head_placement(tape, call, norm.source)
    constants = norm_constants(tape, norm)
    following = coordinate_map(tape, norm.result, target)
    n = len(following.index)
    if not torch.equal(following.index, torch.arange(n, device=following.index.device)):
        raise RheoscopeError(Message("a norm of all heads is followed by another order of their coordinates"))
    gain, bias = with_own_gain(tape, norm, following.index, following.gain, following.bias)
    groups = placement.index // constants.width
    if not bool((groups == groups[:, :1]).all()):
        raise RheoscopeError(Message("a norm divides the coordinates of one head by several lengths"))
    return HeadsNorm(
        placement.index,
        placement.factor,
        constants.width,
        gain * constants.gain,
        bias,
        constants.eps,
        constants.subtracts_mean,
    )


def head_placement(tape: Tape, call: SoftmaxCall, target: Value) -> HeadPlacement:
    """Where the coordinates of heads arrive, read with the outputs of one head at a time, at the first token."""
    n_heads, widths = len(call.scale), [tape.template(v).shape[-1] for v in call.outputs]
    n_coordinates = sum(widths)

    def arrives(head: int, numbers: Float[Tensor, " e"]) -> Float[Tensor, " z"]:
        substitutions: dict[Value, Tensor] = {}
        for value, columns in zip(call.outputs, numbers.split(widths), strict=True):
            rows = torch.zeros(tape.n_tokens, n_heads, len(columns), dtype=torch.float64, device=columns.device)
            rows[:, head] = columns
            substitutions[value] = from_token_rows(tape, rows.flatten(1), value)
        return token_rows(tape, replay(tape, [target], substitutions)[0])[0]

    device = tape.template(call.output).device
    ones = torch.ones(n_coordinates, dtype=torch.float64, device=device)
    index, factor = list[Tensor](), list[Tensor]()
    if bool((arrives(0, 0 * ones) != 0).any()):
        raise RheoscopeError(Message("a norm of all heads reads a constant too"))
    for head in range(n_heads):
        gain = arrives(head, ones)
        places = (gain.abs() > NEAR).nonzero().flatten()
        if len(places) != n_coordinates:
            raise RheoscopeError(Message("the coordinates of heads are mixed before a norm of all heads"))
        sources = arrives(head, torch.arange(1, n_coordinates + 1).to(ones))[places] / gain[places] - 1
        order = sources.round().long().argsort()
        if float((sources[order] - torch.arange(n_coordinates, device=device)).abs().max()) > 1e-6 * n_coordinates:
            raise RheoscopeError(Message("the coordinates of heads are mixed before a norm of all heads"))
        index.append(places[order])
        factor.append(gain[places][order])
    return HeadPlacement(torch.stack(index), torch.stack(factor))
