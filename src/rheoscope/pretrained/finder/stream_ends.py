"""The two ends of the stream: from token embeddings to the first points, and from the last points to logits."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rheoscope.messages.message import Message
from rheoscope.pretrained.effective_weights import effective_weights
from rheoscope.pretrained.finder.chains import Normalisation, Weight, frontier
from rheoscope.pretrained.finder.coordinates import coordinate_map, filled_with, is_positions
from rheoscope.pretrained.finder.feed_forward import apply_modules, module_chain
from rheoscope.pretrained.finder.head_matrices import read_norm
from rheoscope.pretrained.finder.tape import ModuleCall, Tape, Value, replay, replay_as_recorded
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model_parts import Norm

VOCABULARY_CHUNK = 1 << 14
"""Entries of the vocabulary that are converted to float32 together."""
COMPARED_TOKENS = 4
"""Tokens whose logits are compared."""
CLOSE = 1e-3
"""The relative error up to which logits of half-precision networks count as equal."""


@dataclass(frozen=True, eq=False)
class Embedding:
    """How token embeddings enter the stream: times `scale`, then through `projection` if they are narrower."""

    scale: float
    projection: Float[Tensor, "w d"] | None


def token_table(network: Any) -> Any:
    """The module whose `weight` has a row for every token id."""
    try:
        table = network.get_input_embeddings()
    except NotImplementedError:
        table = None
    if not isinstance(getattr(table, "weight", None), Tensor):
        raise RheoscopeError(
            Message(
                "{network} has no table of token embeddings, or several, expected 1 (get_input_embeddings)",
                network=type(network).__name__,
            )
        )
    return table


def no_vocabulary(tape: Tape, points: Value) -> nn.Embedding:
    """The embedding of a network that reads no token ids: it has no rows."""
    x = tape.template(points)
    return nn.Embedding.from_pretrained(x.new_empty(0, x.shape[-1]))


def read_embedding(tape: Tape, table: Any, points: Value) -> Embedding:
    """The factor and the matrix between the rows of the embedding and the first points. A norm between them is left out."""
    weight = table.weight
    lookups = [
        x
        for x in tape.operations
        if x.name == "embedding" and tape.tensors[x.operands[0]] is weight and _has_tokens(tape, x.results[0])
    ]
    if not lookups:
        return Embedding(1.0, None)
    rows = lookups[0].results[0]
    tokens = tape.descendants({rows})
    try:
        stages = frontier(tape, points, tokens, rows)
        while len(stages) == 1 and isinstance(stages[0], Normalisation):
            points = stages[0].source
            stages = frontier(tape, points, tokens, rows)
        if stages == [rows]:
            gain = coordinate_map(tape, rows, points).gain
            return Embedding(float(gain[0]) if bool((gain == gain[0]).all()) else 1.0, None)
        if len(stages) == 1 and isinstance(stages[0], Weight):
            matrix = tape.tensors[stages[0].matrix]
            matrix = matrix.reshape(matrix.shape[-2:])
            if len(matrix) == weight.shape[-1]:
                return Embedding(1.0, matrix)
    except RheoscopeError:
        pass  # what lies between them affects no analysis of heads
    return Embedding(1.0, None)


def _has_tokens(tape: Tape, value: Value) -> bool:
    return tape.n_tokens in tape.template(value).shape[:-1]


def find_final_norm(tape: Tape, output: Value) -> Norm:
    """The norm that reads the last points; the identity if there is none."""
    for call, stage in norm_calls(tape, output):
        try:
            return read_norm(tape, stage, output, call.outputs[0])
        except RheoscopeError:
            continue
    return Norm()


def norm_calls(tape: Tape, points: Value) -> Iterator[tuple[ModuleCall, Normalisation]]:
    """The calls of modules that are norms of these points, each with its division."""
    end, tokens = tape.producer[points], tape.descendants({points})
    for call in tape.calls:
        if call.first_operation <= end or points not in call.inputs[:1] or not call.outputs:
            continue
        try:
            stages = frontier(tape, call.outputs[0], tokens, points)
        except RheoscopeError:
            continue
        if len(stages) == 1 and isinstance(stages[0], Normalisation) and _reads(tape, stages[0], tokens, points):
            yield call, stages[0]


def _reads(tape: Tape, norm: Normalisation, tokens: set[Value], points: Value) -> bool:
    """Whether a norm reads these points and nothing else."""
    try:
        return frontier(tape, norm.source, tokens, points) == [points]
    except RheoscopeError:
        return False


def logits_value(tape: Tape, output: Value, n_vocabulary: int) -> Value | None:
    """The last tensor on the tape with one number per token and vocabulary entry."""
    tokens = tape.descendants({output})
    shape = (tape.n_tokens, n_vocabulary)
    values = [v for x in tape.operations for v in x.results if v in tokens and tape.template(v).shape[-2:] == shape]
    return values[-1] if values else None


def prediction_head(tape: Tape, output: Value, logits: Value) -> Callable[[Tensor], Tensor] | None:
    """Logits as a function of the last points: a chain of the network's modules."""
    end = tape.producer[output]
    chain = module_chain(tape, [call for call in tape.calls if call.first_operation > end], output, logits)
    if not chain:
        return None
    modules = tuple(call.module for call in chain)
    return lambda x: apply_modules(modules, 1.0, x)


@dataclass(frozen=True, eq=False)
class Unembedding:
    """Logits = cap(norm(x) projection unembedding * scale + bias). None of it is known if `scale` is None.

    `bias` is one that is added outside of the unembedding, if there is one.
    """

    scale: float | None
    projection: Float[Tensor, "d w"] | None
    bias: Float[Tensor, " v"] | None = None


def read_unembedding(
    tape: Tape, network: Any, output: Value, logits: Value | None, norm: Norm, cap: float | None
) -> Unembedding:
    """The factor of the logits, by comparison of the network's logits with the norm and the unembedding at random points.

    If a product reads the unembedding itself, what it multiplies is compared, and no logits are computed.
    """
    module = network.get_output_embeddings()
    if module is None or logits is None or not isinstance(getattr(module, "weight", None), Tensor):
        return Unembedding(None, None)
    weight, bias = effective_weights(module)
    at_product = _at_product(tape, output, logits, norm, weight, bias)
    if at_product is not None:
        return at_product
    projection = _output_projection(tape, output, logits, weight)
    points = random_points(tape, output)
    x = norm.apply(points).flatten(0, -2)[:COMPARED_TOKENS]
    x = x if projection is None else x @ projection.to(x)
    if x.shape[-1] != weight.shape[-1]:
        return Unembedding(None, None)
    own = _unembedded(x, weight)
    recorded = replay_as_recorded(tape, [logits], {output: points})[0]
    expected = recorded.flatten(0, -2)[:COMPARED_TOKENS].double()
    if cap is not None:
        expected = cap * torch.atanh((expected / cap).clamp(-1 + 1e-7, 1 - 1e-7))
    expected = expected if bias is None else expected - bias.double()
    varying, expected_varying = own - own.mean(0), expected - expected.mean(0)  # a bias is the same for all tokens
    scale = float((varying * expected_varying).sum() / varying.square().sum())
    scale = 1.0 if abs(scale - 1) < CLOSE else scale
    if float((varying * scale - expected_varying).norm()) > CLOSE * float(expected_varying.norm()):
        return Unembedding(None, None)
    offset = (expected - own * scale).mean(0)
    has_offset = float(offset.abs().max()) > CLOSE * float(expected.abs().max())
    return Unembedding(scale, projection, offset.to(x) if has_offset else None)


def _at_product(
    tape: Tape, output: Value, logits: Value, norm: Norm, weight: Float[Tensor, "v w"], bias: Tensor | None
) -> Unembedding | None:
    """The same from what the product with the unembedding reads and from what follows it; None if that is no factor and bias."""
    try:
        (stage, *more) = frontier(tape, logits, tape.descendants({output}), output)
    except RheoscopeError:  # a cap
        return None
    if more or not isinstance(stage, Weight) or not _is_transpose(tape.tensors[stage.matrix], weight):
        return None
    points = random_points(tape, output)
    x, y = norm.apply(points).double(), replay(tape, [stage.source], {output: points})[0]
    if x.numel() != y.numel():  # a matrix lies between them
        return None
    y = y.view(x.shape)
    scale = float((x * y).sum() / x.square().sum())
    zeros, ones = (
        replay(tape, [logits], {stage.result: filled_with(tape, stage.result, number)})[0].flatten(0, -2)
        for number in (0.0, 1.0)
    )
    factor, offset = float(ones[0, 0] - zeros[0, 0]), zeros[0]
    is_one_map = torch.allclose(ones, offset + factor) and torch.equal(zeros, offset.expand_as(zeros))
    if float((x * scale - y).norm()) > CLOSE * float(y.norm()) or not is_one_map or (factor != 1 and bias is not None):
        return None
    if stage.bias is None and bias is not None:  # it is added after the product
        offset = offset - bias.double()
    scale = scale * factor
    scale = 1.0 if abs(scale - 1) < CLOSE else scale
    return Unembedding(scale, None, offset.to(points) if bool((offset != 0).any()) else None)


def _is_transpose(matrix: Tensor, weight: Float[Tensor, "v w"]) -> bool:
    """Whether a matrix is the transpose of a weight in the same memory."""
    return matrix.reshape(-1, *matrix.shape[-2:])[0].is_set_to(weight.mT)


def random_points(tape: Tape, value: Value) -> Tensor:
    """Random numbers in the shape and dtype of a tensor on the tape."""
    x = tape.template(value)
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x)


def _unembedded(x: Tensor, weight: Float[Tensor, "v w"]) -> Tensor:
    """Rows of x times the unembedding, some entries of the vocabulary at a time, in float32 or better."""
    dtype = torch.promote_types(weight.dtype, torch.float32)
    x = x.to(dtype)
    return torch.cat([x @ rows.to(x).T for rows in weight.split(VOCABULARY_CHUNK)], -1).double()


def _output_projection(tape: Tape, output: Value, logits: Value, weight: Tensor) -> Float[Tensor, "d w"] | None:
    """The matrix between the last points and a narrower unembedding."""
    width = tape.template(output).shape[-1]
    if weight.shape[-1] == width:
        return None
    tokens = tape.descendants({output})
    for operation in tape.operations[tape.producer[output] :]:
        if operation.name == "mm" and operation.operands[0] in tokens and operation.operands[1] not in tokens:
            matrix = tape.tensors[operation.operands[1]]
            if matrix.shape == (width, weight.shape[-1]):
                return matrix
    return None


def longest_text(tape: Tape) -> int | None:
    """The longest text that a table of position embeddings allows, less the rows before its first position."""
    limits = []
    for operation in tape.operations:
        if operation.name == "embedding" and is_positions(tape, operation.operands[1]):
            first = int(tape.tensors[operation.operands[1]].flatten()[0])
            limits.append(len(tape.template(operation.operands[0])) - first)
    return min(limits) if limits else None
