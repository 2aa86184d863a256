"""The certificate of a View: on a few tokens it must reproduce what the model computes."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.attention.definition import reference_attention
from rheoscope.attention.normaliser.sink import Sink
from rheoscope.messages.message import Message
from rheoscope.running.loading_stages import Progress
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads, project_normalised
from rheoscope.space.model_parts import Projected
from rheoscope.space.step import Step
from rheoscope.space.trace import Trace
from rheoscope.space.view import View

PROBE_TOKENS = 8
LayerErrors = tuple[float, float, float, float]
"""The errors of the weights, of closure and of the operators of a layer, and its largest rounded score."""
ALLOWED_ROUNDINGS = 4
"""A correct description is off by less than half an eps of the dtype (measured on trained models in float16 and bfloat16).
Eight times that error is rejected."""
QUANTISATION_BOUND = 0.2
"""The largest relative gap between dequantised weights and the quantised run that is accepted. Weights of 4 or 8 bits have gaps of
1e-5 in a trained model; activations of 8 bits have .09 to .13 in its worst layer."""


@dataclass(frozen=True)
class Coverage:
    """Where a View was compared with its model.

    `positions` are those of tokens. `windows` and `switches` (of rotary scalings) are those at whose edges tokens were. `untested`
    says what could not be compared, and why.
    """

    positions: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()
    switches: tuple[int, ...] = ()
    is_padded: bool = False
    untested: tuple[Message, ...] = ()


@dataclass(frozen=True)
class Certificate:
    """How far the recomputed numbers are from the model's.

    `weights_error` is the largest difference of a weight. `closure_error` is relative to the displacement. `operators_error`
    compares x̂ through the matrices of M and F with the model's own q, k, v, relative to them.

    The points are those that the model computed, layer by layer, so rounding does not accumulate with depth. Each error is
    compared with the rounding of one layer in `dtype` (`tolerance`). `largest_rounded_score` is the largest score of the layers
    in which half precision rounds scores enough to move weights; 0 if there is none.
    `ignored_weights` names weights that the checkpoint has or lacks and that are outside the stream (a pooler, a classifier).
    `quantisation` names the library that runs quantised weights, which were dequantised for M and F. The errors are then those
    of the dequantised model, and `gap` is its distance from the quantised run (at most `QUANTISATION_BOUND`). `stored_as` names
    the quantised format of weights that were dequantised when they were read, for the run too.
    `coverage` has the positions that were compared, and those that could not be.
    """

    weights_error: float
    closure_error: float
    operators_error: float
    n_tokens: int
    dtype: str
    ignored_weights: tuple[str, ...] = ()
    largest_rounded_score: float = 0.0
    device: str = "cpu"
    quantisation: str = ""
    gap: float = 0.0
    stored_as: str = ""
    coverage: Coverage = Coverage()

    def __str__(self) -> str:
        return self.summary

    @property
    def summary(self) -> Message:
        """The certificate in one line."""
        if not self.ignored_weights:
            return Message("{precision}: {errors}", precision=self._precision_text, errors=self.error_summary)
        n_more, names = len(self.ignored_weights) - 3, ", ".join(self.ignored_weights[:3])
        if n_more > 0:
            return Message(
                "{precision}: {errors}; ignored weights outside the stream: {names} and {n} more",
                precision=self._precision_text,
                errors=self.error_summary,
                names=names,
                n=n_more,
            )
        return Message(
            "{precision}: {errors}; ignored weights outside the stream: {names}",
            precision=self._precision_text,
            errors=self.error_summary,
            names=names,
        )

    @property
    def _precision_text(self) -> Message:
        dtype = getattr(torch, self.dtype)
        if dtype.itemsize >= 4:
            precision = Message("exact on {n} tokens in {dtype}", n=self.n_tokens, dtype=self.dtype)
        else:
            precision = Message(
                "exact up to the rounding of {dtype} ({eps:.1e}) on {n} tokens",
                dtype=self.dtype,
                eps=torch.finfo(dtype).eps,
                n=self.n_tokens,
            )
        if self.quantisation:
            precision = Message(
                "dequantised from {method}, and the quantised run differs by up to {gap:.1e} (bound {bound:g}); {precision}",
                method=self.quantisation,
                gap=self.gap,
                bound=QUANTISATION_BOUND,
                precision=precision,
            )
        if self.stored_as:
            precision = Message(
                "weights stored as {format} and dequantised for the run and for M and F, which have no gap; {precision}",
                format=self.stored_as,
                precision=precision,
            )
        if self.device == "cpu":
            return precision
        return Message("{precision}, on {device}", precision=precision, device=self.device)

    @property
    def error_values(self) -> tuple[float, float, float, float]:
        return self.weights_error, self.closure_error, self.operators_error, self.largest_rounded_score

    @property
    def error_summary(self) -> Message:
        if self.largest_rounded_score:
            return Message(
                "weights off by {weights:.1e} (scores of up to {score:.0f} are rounded too), closure by {closure:.1e}, "
                "operators by {operators:.1e}",
                weights=self.weights_error,
                score=self.largest_rounded_score,
                closure=self.closure_error,
                operators=self.operators_error,
            )
        return Message(
            "weights off by {weights:.1e}, closure by {closure:.1e}, operators by {operators:.1e}",
            weights=self.weights_error,
            closure=self.closure_error,
            operators=self.operators_error,
        )


def probe_ids(view: View) -> Int[Tensor, " n"]:
    """The eight tokens on which every model is certified, or fewer for a shorter context."""
    vocabulary_size, context = len(view.embed), view.context_length or PROBE_TOKENS
    return torch.linspace(vocabulary_size // 3, vocabulary_size - 1, min(PROBE_TOKENS, context)).long()


@torch.no_grad()
def certify(
    trace: Trace,
    model_weights: Sequence[Float[Tensor, "h n n"]],
    progress: Progress | None = None,
) -> Certificate:
    """Check weights, closure and operators of every layer; raise if the View does not reproduce the model.

    `model_weights` are the attention weights of the running model, layer by layer.
    """
    errors = []
    for layer, layer_weights in enumerate(model_weights):
        errors.append(layer_errors(trace, layer, layer_weights))
        if progress is not None:
            progress(layer + 1, trace.view.layers)
    return certificate_of(trace.view, errors, len(trace), trace.points.device)


def layer_errors(trace: Trace, layer: int, model_weights: Float[Tensor, "h n n"]) -> LayerErrors:
    """The errors of one layer: its weights, its closure, its operators, and its largest score if scores are rounded."""
    before, after = trace.layer_input(layer), trace.points[trace.mid_steps[layer]]
    return cloud_errors(trace.view.layer_heads[layer], trace.view.dtype, before, after, model_weights)


@dataclass(frozen=True, eq=False)
class Texts:
    """Several texts in one cloud, in which every token sees those of its own text.

    `sizes` are their numbers of tokens. Weight (i, j) of the cloud is weight (i, column) of the model, for every query i, key j and
    column of `pairs`.
    """

    sizes: list[int]
    pairs: tuple[Int[Tensor, " p"], Int[Tensor, " p"], Int[Tensor, " p"]]


def cloud_errors(
    heads: Heads,
    dtype: torch.dtype,
    before: Float[Tensor, "n d"],
    after: Float[Tensor, "n d"],
    model_weights: Float[Tensor, "h n k"],
    texts: Texts | None = None,
) -> LayerErrors:
    """The errors of heads on a cloud before and after their attention, the largest of all texts in it.

    Several texts have no score that explains their errors: a text with such errors is compared alone.
    """
    sizes, q_k_v = [len(before)] if texts is None else texts.sizes, heads.qkv(before)
    outputs, own_weights = (x[0] for x in reference_attention(heads.mechanism, *q_k_v))
    if isinstance(heads.mechanism.normaliser, Sink) and _sums_to_one(model_weights):
        own_weights = own_weights / own_weights.sum(-1, keepdim=True)  # the closure proves the sinks
    if texts is not None:
        queries, keys, columns = texts.pairs
        own_weights, model_weights = own_weights[:, queries, keys], model_weights[:, queries, columns]
    weights = _weights_error(own_weights, model_weights)
    displacements, bias = heads.displacements_of(outputs, before)
    clouds = zip(*(x.split(sizes) for x in (before, after, displacements.sum(0) + bias)), strict=True)
    closure = _worst(_relative_residual(dtype, *cloud) for cloud in clouds)
    head_scores = [partial(heads.scores, before, head) for head in range(heads.n_heads if len(sizes) == 1 else 0)]
    score = _largest_rounded_score(dtype, max(weights, closure), head_scores)
    return weights, closure, operators_error(heads, before, q_k_v), score


@torch.no_grad()
def certify_cross_attention(trace: Trace, model_weights: Sequence[Float[Tensor, "h n s"]]) -> Certificate:
    """The same for the cross-attention of every layer."""
    errors = [cross_errors(trace, layer, layer_weights) for layer, layer_weights in enumerate(model_weights)]
    return certificate_of(trace.view, errors, len(trace), trace.points.device)


def cross_errors(trace: Trace, layer: int, model_weights: Float[Tensor, "h n s"]) -> LayerErrors:
    """The errors of the cross-attention of one layer. Queries are compared on the target, keys and values on the source."""
    cross_heads, (x, memory) = trace.view.cross_heads[layer], trace.cross_inputs(layer)
    after = trace.points[trace.index(Step(layer, "resid_mid")) + 1]
    dtype, q_k_v = trace.view.dtype, cross_heads.qkv(x, memory)
    outputs, own_weights = (values[0] for values in reference_attention(cross_heads.mechanism, *q_k_v))
    weights = _weights_error(own_weights, model_weights)
    displacements, bias = cross_heads.target_heads.displacements_of(outputs, x)
    closure = _relative_residual(dtype, x, after, displacements.sum(0) + bias)
    head_scores = [partial(cross_heads.scores, x, memory, head) for head in range(cross_heads.n_heads)]
    score = _largest_rounded_score(dtype, max(weights, closure), head_scores)
    target, source = cross_heads.target_heads, cross_heads.source_heads
    operators = _worst(
        (*_projection_errors(target, x, q_k_v, slice(0, 1)), *_projection_errors(source, memory, q_k_v, slice(1, 3)))
    )
    return weights, closure, operators, score


def combine_certificates(certificates: Sequence[Certificate]) -> Certificate:
    """One certificate for several parts of a model: the largest of each error."""
    weights, closure, operators, scores = (
        _worst(errors) for errors in zip(*(certificate.error_values for certificate in certificates), strict=True)
    )
    return replace(
        certificates[0],
        weights_error=weights,
        closure_error=closure,
        operators_error=operators,
        largest_rounded_score=scores,
    )


def certificate_of(view: View, errors: Sequence[LayerErrors], n_tokens: int, device: torch.device) -> Certificate:
    """The certificate of a View with the errors of all its layers; raises if rounding does not explain them."""
    dtype = view.dtype
    weights, closure, operators, scores = (_worst(values) for values in zip(*errors, strict=True))
    dtype_name = str(dtype).removeprefix("torch.")
    certificate = Certificate(
        weights, closure, operators, n_tokens, dtype_name, largest_rounded_score=scores, device=str(device),
        coverage=Coverage(tuple(range(n_tokens))),
    )  # fmt: skip
    if not all(is_explained(layer, dtype) for layer in errors):
        raise RheoscopeError(
            Message(
                "the description of {family} does not reproduce this model: {errors}, but rounding in {dtype} explains at most "
                "{tolerance:.1e}; please report the config",
                family=str(view.facts.get("family")),
                errors=certificate.error_summary,
                dtype=certificate.dtype,
                tolerance=tolerance(dtype),
            )
        )
    return certificate


def is_explained(errors: LayerErrors, dtype: torch.dtype) -> bool:
    """Whether rounding explains the errors of a layer."""
    weights, closure, operators, score = errors
    return _worst((weights / max(1.0, score), closure / max(1.0, score), operators)) <= tolerance(dtype)


@torch.no_grad()
def certify_quantised(certificate: Certificate, trace: Trace, quantisation: str) -> Certificate:
    """The certificate of the dequantised model with the gap to the quantised run, whose points are in `trace`.

    The gap is the largest relative difference of a query, key, value or displacement. Raises if it exceeds `QUANTISATION_BOUND`.
    """
    heads_and_inputs = [(heads, trace.layer_input(layer)) for layer, heads in enumerate(trace.view.layer_heads)]
    operators = _worst(operators_error(heads, x) for heads, x in heads_and_inputs)
    closure = _worst(closure_error(trace, layer) for layer in range(trace.view.layers))
    gap = _worst((operators, closure))
    if not gap <= QUANTISATION_BOUND:
        raise RheoscopeError(
            Message(
                "M and F of the dequantised weights ({method}) differ from the quantised run by {gap:.2f}, more than {bound:g}; "
                "load the model without quantisation",
                method=quantisation,
                gap=gap,
                bound=QUANTISATION_BOUND,
            )
        )
    return replace(certificate, quantisation=quantisation, gap=gap)


def tolerance(dtype: torch.dtype) -> float:
    """The largest error that rounding explains; a larger one means a wrong description.

    >>> tolerance(torch.float32), tolerance(torch.bfloat16)
    (0.0001, 0.03125)
    """
    return max(1e-4, ALLOWED_ROUNDINGS * torch.finfo(dtype).eps)


def _largest_rounded_score(dtype: torch.dtype, error: float, head_scores: Sequence[Callable[[], Tensor]]) -> float:
    """The largest score of a layer, if its error needs an explanation.

    A model in half precision may round a score s by up to |s| eps / 2, which moves its weights and displacements by as much.
    With large scores, the model's own weights differ that much from those of its own queries and keys.
    """
    if error <= tolerance(dtype) or dtype.itemsize >= 4:
        return 0.0
    return max((float(scores().abs().max()) for scores in head_scores), default=0.0)


def _sums_to_one(weights: Float[Tensor, "h n s"]) -> bool:
    """Whether a model with sinks applies them to its outputs and not to its weights."""
    return bool((weights.float().sum(-1) - 1).abs().max() < 1e-3)


def _weights_error(recomputed: Float[Tensor, "h *pairs"], model_weights: Float[Tensor, "h *pairs"]) -> float:
    return float((recomputed - model_weights.to(recomputed.dtype)).abs().max())


def closure_error(trace: Trace, layer: int) -> float:
    """|x_mid - x - sum_h Delta_h - bias| / |x_mid - x|, over the whole cloud.

    If the displacement is smaller than the rounding of the points, it is measured relative to that rounding.
    """
    before, after = trace.points[trace.input_steps[layer]], trace.points[trace.mid_steps[layer]]
    update = trace.displacements(layer).sum(0) + trace.bias(layer)
    return _relative_residual(trace.view.dtype, before, after, update)


def _relative_residual(
    dtype: torch.dtype, before: Float[Tensor, "n d"], after: Float[Tensor, "n d"], update: Float[Tensor, "n d"]
) -> float:
    rounding = 2 * torch.finfo(dtype).eps / tolerance(dtype) * float(after.norm())
    displacement = after - before
    residual, length = float((displacement - update).norm()), float(displacement.norm())
    return residual / _worst((length, rounding, 1e-30))


def operators_error(heads: Heads, x: Float[Tensor, "n d"], q_k_v: Projected | None = None) -> float:
    """|q̂ - q| / |q| with q̂ = x̂ through the folded matrices; the largest for q, k and v."""
    return _worst(_projection_errors(heads, x, heads.qkv(x) if q_k_v is None else q_k_v, slice(0, 3)))


def _projection_errors(heads: Heads, x: Float[Tensor, "n d"], q_k_v: Sequence[Tensor], parts: slice) -> Iterator[float]:
    """The same for some of q, k and v, each by itself."""
    x_hat = heads.norm.normalise(x)
    matrices = (
        (heads.W_Q, heads.b_Q, heads.q_norm),
        (heads.W_K, heads.b_K, heads.k_norm),
        (heads.W_V, heads.b_V, heads.v_norm),
    )
    for (W, b, qk_norm), original in list(zip(matrices, q_k_v, strict=True))[parts]:
        recomputed = project_normalised(heads.norm, x_hat, W, b, qk_norm)
        yield float((recomputed - original[0]).norm()) / max(float(original.norm()), 1e-30)


def _worst(errors: Iterable[float]) -> float:
    """The maximum; NaN if any error is NaN (Python's max may lose it)."""
    values = tuple(errors)
    return math.nan if any(map(math.isnan, values)) else max(values)
