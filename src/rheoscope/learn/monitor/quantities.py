"""The quantities that the monitor measures in every layer and head, from one forward pass of a small batch.

Tokens that are far longer than the others (massive tokens) are left out of the quantities of a layer.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.attention.definition import masked_scores, query_key_positions, repeat_kv_heads
from rheoscope.attention.mechanism import Mechanism
from rheoscope.covers.agreement.analysis import batch as measure_agreement
from rheoscope.flow.transport.next_token import readout_vectors
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads
from rheoscope.space.operator import Factored, symmetry_of_products
from rheoscope.space.safe_arithmetic import at_least_float32, safe_divide
from rheoscope.space.traces import Traces

SQUARINGS = 12
"""The norm of A is ‖(AᵀA)^(2^12)‖^(2^−13), up to a factor r^(2^−13): .05 % for r = 64."""
AGREEMENT_QUERIES = 8
"""The number of queries of every text in which agreement is measured."""


@dataclass(frozen=True, eq=False)
class LayerReading:
    """One layer at a check: its heads and the clouds `before` and `after` it. `is_included` is False at massive tokens.

    `next_directions` are the unit vectors that predict the next token, without the last token of each text; None if there are none.
    `of_operators` has the quantities of M and F, which need no texts.
    """

    heads: Heads
    before: Float[Tensor, "b n d"]
    after: Float[Tensor, "b n d"]
    is_included: Bool[Tensor, "b n"]
    mixed_values: Float[Tensor, "b h n e"]
    output_map: Float[Tensor, "h e d"]
    next_directions: Float[Tensor, "b m d"] | None
    agreement_by_head: Float[Tensor, " h"]
    of_operators: dict[str, Float[Tensor, " h"]]

    @cached_property
    def _encoded(self) -> tuple[Tensor, Tensor]:
        """Queries and keys of every head, with positions."""
        q, k, _ = self.heads.qkv(self.before)
        position, (i, j) = self.heads.mechanism.position, self.positions
        q, k = at_least_float32(q), repeat_kv_heads(at_least_float32(k), self.heads.n_heads)
        return position.encode(q, i), position.encode(k, j)

    @property
    def positions(self) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
        n = self.before.shape[-2]
        return query_key_positions(n, n, self.before.device)

    @cached_property
    def scores(self) -> Float[Tensor, "b h n n"]:
        """Scores of every head, −∞ where the mask forbids a pair."""
        return masked_scores(self.heads.mechanism, *self._encoded, *self.positions)

    @cached_property
    def weights(self) -> Float[Tensor, "b h n n"]:
        """Attention weights of every head. Raises where they can be negative."""
        mechanism: Mechanism = self.heads.mechanism
        if mechanism.domain.has_negative_weights:
            raise RheoscopeError(Message("the attention weights of this model can be negative"))
        return mechanism.normaliser(self.scores)

    @cached_property
    def displacements(self) -> Float[Tensor, "b h n d"]:
        """The displacement of every token by every head."""
        return at_least_float32(self.mixed_values) @ at_least_float32(self.output_map)

    @cached_property
    def displacement_grams(self) -> Float[Tensor, "h h"]:
        """Inner products of the displacements by the heads, over all tokens."""
        flat = self.displacements.transpose(0, 1).flatten(1)
        return flat @ flat.mT

    @cached_property
    def cosines_between_heads(self) -> Float[Tensor, "h h"]:
        """Cosines of the displacements by the heads; 0 of a head with itself and of a head that moves nothing."""
        lengths = self.displacement_grams.diagonal().clamp(min=0).sqrt()
        cosines = safe_divide(self.displacement_grams, lengths[:, None] * lengths)
        return cosines.fill_diagonal_(0)

    def length(self, cloud: Float[Tensor, "b n d"]) -> Float[Tensor, ""]:
        """The norm of the included tokens of a cloud, together."""
        return torch.where(self.is_included[..., None], cloud, 0).norm()


def largest_logit(layer: LayerReading) -> Float[Tensor, " h"]:
    return torch.where(layer.scores.isneginf(), 0, layer.scores).abs().amax((0, 2, 3))


def entropy(layer: LayerReading) -> Float[Tensor, " h"]:
    n_allowed = (~layer.scores.isneginf()).sum(-1)
    p = layer.weights / layer.weights.sum(-1, keepdim=True).clamp(min=torch.finfo(layer.weights.dtype).tiny)
    relative = torch.special.entr(p).sum(-1) / n_allowed.clamp(min=2).to(p.dtype).log()
    return (relative * (n_allowed > 1)).sum((0, 2)) / (n_allowed > 1).sum((0, 2))


def sink(layer: LayerReading) -> Float[Tensor, " h"]:
    return layer.weights[:, :, 1:, 0].mean((0, 2))


def self_weight(layer: LayerReading) -> Float[Tensor, " h"]:
    return layer.weights.diagonal(dim1=-2, dim2=-1)[..., 1:].mean((0, 2))


def agreement(layer: LayerReading) -> Float[Tensor, " h"]:
    return layer.agreement_by_head


def relative_displacement(layer: LayerReading) -> Float[Tensor, " h"]:
    return layer.displacement_grams.diagonal().clamp(min=0).sqrt() / layer.before.norm()


def nearest_head_cosine(layer: LayerReading) -> Float[Tensor, " h"]:
    return layer.cosines_between_heads.amax(-1)


def nearest_head(layer: LayerReading) -> Float[Tensor, " h"]:
    return layer.cosines_between_heads.argmax(-1).float()


def toward_next(layer: LayerReading) -> Float[Tensor, " h"]:
    if layer.next_directions is None:
        raise RheoscopeError(Message("this model predicts no next token"))
    update = layer.displacements[:, :, :-1]
    update = update - update.mean(-2, keepdim=True)
    return safe_divide((update * layer.next_directions[:, None]).sum(-1), update.norm(dim=-1)).mean((0, 2))


def residual(layer: LayerReading) -> Float[Tensor, ""]:
    return layer.length(layer.after - layer.before) / layer.length(layer.before)


def norm_growth(layer: LayerReading) -> Float[Tensor, ""]:
    return layer.length(layer.after) / layer.length(layer.before)


def token_cosine(layer: LayerReading) -> Float[Tensor, ""]:
    x_hat = layer.heads.norm.centre(layer.before)
    unit = safe_divide(x_hat, x_hat.norm(dim=-1, keepdim=True)) * layer.is_included[..., None]
    n = layer.is_included.sum(-1)
    return ((unit.sum(-2).square().sum(-1) - n) / (n * (n - 1)).clamp(min=1)).mean()


def of_operators(layer_heads: Sequence[Heads], left_out: dict[str, str]) -> dict[str, list[Tensor]]:
    """The quantities of M and F of every layer; those of an operator that a layer lacks are added to `left_out`."""
    values: dict[str, list[Tensor]] = {}
    try:
        M = [heads.M() for heads in layer_heads]
        values |= {"stable_rank_M": stable_ranks(M), "symmetry": symmetries(M)}
    except RheoscopeError as error:
        left_out |= dict.fromkeys(("stable_rank_M", "symmetry"), str(error))
    try:
        values["stable_rank_F"] = stable_ranks([heads.F() for heads in layer_heads])
    except RheoscopeError as error:
        left_out["stable_rank_F"] = str(error)
    return values


def stable_ranks(operators: Sequence[Factored]) -> list[Tensor]:
    """‖A‖²_F/‖A‖²₂ of every head of every layer."""
    return together(_stable_rank, [left @ right for left, right in (A.grams for A in operators)])


def symmetries(operators: Sequence[Factored]) -> list[Tensor]:
    """tr(AA)/tr(AAᵀ) of every head of every layer."""
    left, right = zip(*(A.grams for A in operators), strict=True)
    return together(symmetry_of_products, left, right, [A.right_left for A in operators])


def together(measure: Callable[..., Tensor], *operands: Sequence[Tensor]) -> list[Tensor]:
    """The measure of every layer; layers whose operands have equal shapes are measured in one batch.

    On a GPU, the number of operations decides the cost of these small matrices, not their size.
    """
    batches: dict[tuple[Any, ...], list[int]] = {}
    for layer, operand in enumerate(operands[0]):
        batches.setdefault((operand.shape, operand.device), []).append(layer)
    values: dict[int, Tensor] = {}
    for layers in batches.values():
        batch = measure(*(torch.stack([operand[layer] for layer in layers]) for operand in operands))
        values |= dict(zip(layers, batch, strict=True))
    return [values[layer] for layer in range(len(operands[0]))]


def _stable_rank(product: Float[Tensor, "l h r r"]) -> Float[Tensor, "l h"]:
    """‖A‖²_F/‖A‖²₂ from LᵀL RRᵀ by repeated squaring, which needs only matrix products; its slow twin is `Factored.stable_rank`.

    The nonzero eigenvalues of AᵀA are those of LᵀL RRᵀ. Each of 12 squarings is divided by its norm.
    """
    frobenius = product.diagonal(dim1=-2, dim2=-1).sum(-1)
    power, log_scale = product, torch.zeros_like(frobenius)
    for _ in range(SQUARINGS):
        norm = torch.linalg.matrix_norm(power).clamp(min=torch.finfo(power.dtype).tiny)
        power = power / norm[..., None, None]
        power, log_scale = power @ power, 2 * (log_scale + norm.log())
    log_norm = log_scale + torch.linalg.matrix_norm(power).clamp(min=torch.finfo(power.dtype).tiny).log()
    largest = (log_norm / 2**SQUARINGS).exp()
    return torch.where(frobenius > 0, frobenius / largest, 0)


@dataclass(frozen=True)
class Quantity:
    """A quantity of every head or of every layer, with its definition. `is_shown`: it is logged, not only used by a rule."""

    name: str
    axis: Literal["head", "layer"]
    definition: str
    measure: Callable[[LayerReading], Tensor] = field(repr=False)
    is_shown: bool = True


def _of_operators(name: str, definition: Message) -> Quantity:
    """A quantity that was measured for all layers at once."""
    return Quantity(name, "head", definition, lambda layer: layer.of_operators[name])


def _quantities() -> Iterator[Quantity]:
    yield Quantity("largest_logit", "head", Message("largest |score| before softmax"), largest_logit)
    yield Quantity(
        "entropy",
        "head",
        Message("mean entropy of the attention weights, divided by the log of the number of keys: 1 if uniform"),
        entropy,
    )
    yield Quantity("sink", "head", Message("mean weight on the first token"), sink)
    yield Quantity("self_weight", "head", Message("mean weight of a token on itself"), self_weight)
    yield _of_operators("stable_rank_M", Message("‖M‖²_F/‖M‖²₂ of the QK circuit"))
    yield _of_operators("stable_rank_F", Message("‖F‖²_F/‖F‖²₂ of the OV circuit"))
    yield _of_operators("symmetry", Message("tr(MM)/tr(MMᵀ) of the QK circuit: 1 if symmetric"))
    yield Quantity(
        "agreement", "head", Message("partial rank correlation of scores and similarity of tokens in E"), agreement
    )
    yield Quantity(
        "relative_displacement",
        "head",
        Message("‖Δ_h‖/‖X‖: the displacement by the head, relative to the tokens"),
        relative_displacement,
    )
    yield Quantity(
        "nearest_head_cosine",
        "head",
        Message("largest cosine of the displacement by the head with that by another head of its layer"),
        nearest_head_cosine,
    )
    yield Quantity("nearest_head", "head", Message("the head with this largest cosine"), nearest_head, is_shown=False)
    yield Quantity(
        "toward_next",
        "head",
        Message("mean cosine of the centred displacement by the head with the vector that predicts the next token"),
        toward_next,
    )
    yield Quantity("residual", "layer", Message("‖T(X) − X‖/‖X‖ of the layer"), residual)
    yield Quantity("norm_growth", "layer", Message("‖T(X)‖/‖X‖ of the layer"), norm_growth)
    yield Quantity(
        "token_cosine",
        "layer",
        Message("mean cosine of two tokens as the layer reads them: 1 if all are equal"),
        token_cosine,
    )


QUANTITIES: dict[str, Quantity] = {quantity.name: quantity for quantity in _quantities()}


@dataclass(frozen=True, eq=False)
class Reading:
    """All quantities at one step: by name an array (layer, head) or (layer), and the reasons for those `left_out`.

    A layer with fewer heads than others has NaN.
    """

    step: int
    values: dict[str, np.ndarray]
    left_out: dict[str, str]
    loss: float | None = None
    seconds: float = 0.0

    def with_seconds(self, seconds: float) -> "Reading":
        """The same reading with the duration of its check."""
        return replace(self, seconds=seconds)


@torch.no_grad()
def measure(traces: Traces, step: int, loss: float | None = None) -> Reading:
    """Every quantity of a batch of texts of equal length."""
    rows: dict[str, list[Any]] = {name: [] for name in QUANTITIES}
    left_out: dict[str, str] = {}
    for layer in layer_readings(traces, left_out):
        for name, quantity in QUANTITIES.items():
            if name in left_out:
                continue
            try:
                rows[name].append(quantity.measure(layer).reshape(-1).float())
            except RheoscopeError as error:  # no M, no next token, negative weights
                left_out[name] = str(error)
    values = {
        name: _stack(name, row, traces.view.heads)
        for name, row in rows.items()
        if name not in left_out and len(row) == traces.view.layers
    }
    return Reading(step, values, left_out, loss)


def _stack(name: str, row: list[Float[Tensor, " h"]], n_heads: int) -> np.ndarray:
    """The values of all layers as one array."""
    if QUANTITIES[name].axis == "layer":
        return torch.cat(row).cpu().numpy()
    widest = max(n_heads, *map(len, row))
    if any(len(x) < widest for x in row):
        row = [torch.nn.functional.pad(x, (0, widest - len(x)), value=float("nan")) for x in row]
    return torch.stack(row).cpu().numpy()


def layer_readings(traces: Traces, left_out: dict[str, str]) -> Iterator[LayerReading]:
    """The layers of a batch, one after the other. What cannot be measured at all is added to `left_out`."""
    view, is_included = traces.view, traces.valid_mask()
    ends = [*traces.input_steps[1:], len(traces.steps) - 1]
    directions = next_directions(traces)
    try:
        agreement_values = measure_agreement(traces, draws=0, max_queries=AGREEMENT_QUERIES)["agreement"].nanmean(0)
    except RheoscopeError as error:  # texts with too few tokens
        left_out["agreement"] = str(error)
        agreement_values = torch.full((view.layers, view.heads), torch.nan)
    values_of_operators = of_operators(view.layer_heads, left_out)
    for index, heads in enumerate(view.layer_heads):
        factored = traces.factored_displacements(index)
        yield LayerReading(
            heads,
            at_least_float32(traces.layer_input(index)),
            at_least_float32(traces.points_at(ends[index])),
            is_included,
            factored.mixed_values,
            factored.output_map,
            directions,
            agreement_values[index],
            {name: values[index] for name, values in values_of_operators.items()},
        )


def next_directions(traces: Traces) -> Float[Tensor, "b m d"] | None:
    """The centred unit vectors that predict the next token of every token but the last; None if the model predicts none."""
    if not traces.view.predicts_next_token:
        return None
    next_ids = traces.ids[:, 1:]
    vectors = readout_vectors(traces.view, next_ids.flatten()).float().unflatten(0, next_ids.shape)
    vectors = vectors.to(traces.points.device) - vectors.mean((0, 1)).to(traces.points.device)
    return safe_divide(vectors, vectors.norm(dim=-1, keepdim=True))
