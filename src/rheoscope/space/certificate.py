"""The View is proved, not assumed: on eight tokens, what it recomputes must equal what the model computes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads, through
from rheoscope.space.stages import Progress
from rheoscope.space.step import Step
from rheoscope.space.trace import Trace
from rheoscope.space.view import View

TOKENS = 8
ROUNDINGS = 4
"""A right description is off by less than half an eps of the dtype (measured on trained models in float16 and bfloat16); eight
times that is refused."""


@dataclass(frozen=True)
class Certificate:
    """How far recomputation is from the model: weights (largest difference), closure (share of the displacement),
    operators (x̂ through the matrices of M and F against the model's own q, k, v, as a share of them).

    Points are those that the model itself computed, layer by layer, so rounding does not add up with depth: each error is held
    against what one layer rounds by in `dtype` (`slack`).
    `ignored` names weights that the checkpoint has or lacks and that are no part of the stream (a pooler, a classifier)."""

    weights: float
    closure: float
    operators: float
    tokens: int
    dtype: str
    ignored: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self._sense}: {self.errors}{self._without}"

    @property
    def _sense(self) -> str:
        dtype = getattr(torch, self.dtype)
        if dtype.itemsize >= 4:
            return f"exact on {self.tokens} tokens in {self.dtype}"
        return f"exact to the rounding of {self.dtype} ({torch.finfo(dtype).eps:.1e}) on {self.tokens} tokens"

    @property
    def _without(self) -> str:
        more = f" and {len(self.ignored) - 3} more" if len(self.ignored) > 3 else ""
        return f"; ignored, no part of the stream: {', '.join(self.ignored[:3])}{more}" if self.ignored else ""

    @property
    def parts(self) -> tuple[float, float, float]:
        return self.weights, self.closure, self.operators

    @property
    def errors(self) -> str:
        return f"weights off by {self.weights:.1e}, closure by {self.closure:.1e}, operators by {self.operators:.1e}"


def probe(view: View) -> Int[Tensor, " n"]:
    """The eight tokens that every model is asked about, or as many as it reads."""
    vocabulary, context = len(view.embed), view.context or TOKENS
    return torch.linspace(vocabulary // 3, vocabulary - 1, min(TOKENS, context)).long()


@torch.no_grad()
def certify(trace: Trace, own: Sequence[Float[Tensor, "h n n"]], progress: Progress | None = None) -> Certificate:
    """Weights, closure and operators of every layer; refuses a View that does not reproduce the model that was traced.

    `own` are the weights that the running model itself computed, layer by layer.
    """
    found = []
    for layer, (block, of_layer) in enumerate(zip(trace.view.blocks, own, strict=True)):
        x = trace.read_by(layer)
        weights = _weights_error(block.every_weights(x), of_layer)
        unexplained = _unexplained(weights, trace, partial(trace.scores, layer))
        found.append((weights, closure_error(trace, layer), operators_error(block, x), unexplained))
        if progress is not None:
            progress(layer + 1, trace.view.layers)
    return _refused_if_wrong(trace, *(_worst(errors) for errors in zip(*found, strict=True)))


@torch.no_grad()
def certify_across(trace: Trace, own: Sequence[Float[Tensor, "h n s"]]) -> Certificate:
    """The same for the cross attention of every layer."""
    found = []
    for layer, of_layer in enumerate(own):
        weights = _weights_error(_across(trace, layer), of_layer)
        unexplained = _unexplained(weights, trace, partial(trace.cross_scores, layer))
        found.append((weights, cross_closure_error(trace, layer), cross_operators_error(trace, layer), unexplained))
    return _refused_if_wrong(trace, *(_worst(errors) for errors in zip(*found, strict=True)))


def together(found: Sequence[Certificate]) -> Certificate:
    """One certificate for several parts of a model: the worst of each error."""
    weights, closure, operators = (_worst(part) for part in zip(*(one.parts for one in found), strict=True))
    return replace(found[0], weights=weights, closure=closure, operators=operators)


def _refused_if_wrong(
    trace: Trace, weights: float, closure: float, operators: float, unexplained: float
) -> Certificate:
    dtype = trace.view.dtype
    found = Certificate(weights, closure, operators, len(trace), str(dtype).removeprefix("torch."))
    if not _worst((unexplained, closure, operators)) <= slack(dtype):
        raise RheoscopeError(
            f"the description of {trace.view.facts.get('family')} does not reproduce this model ({found.errors}, where "
            f"{found.dtype} explains {slack(dtype):.1e}); nothing computed from it would be true: please report the config"
        )
    return found


def slack(dtype: torch.dtype) -> float:
    """What rounding explains: more is a wrong description.

    >>> slack(torch.float32), slack(torch.bfloat16)
    (0.0001, 0.03125)
    """
    return max(1e-4, ROUNDINGS * torch.finfo(dtype).eps)


def _unexplained(weights: float, trace: Trace, scores: Callable[[int], Tensor]) -> float:
    """What of an error of weights the rounding of scores does not explain.

    A model in half precision rounds a score s by up to |s| eps / 2, which changes weights by as much: where scores are large,
    its own weights are that far from what its own queries and keys give.
    """
    if weights <= slack(trace.view.dtype) or trace.view.dtype.itemsize >= 4:
        return weights
    largest = max(float(scores(head).abs().max()) for head in range(trace.view.heads))
    return weights / max(1.0, largest)


def _weights_error(ours: Float[Tensor, "h n s"], own: Float[Tensor, "h n s"]) -> float:
    return float((ours - own.to(ours.dtype)).abs().max())


def _across(trace: Trace, layer: int) -> Float[Tensor, "h n s"]:
    return torch.stack([trace.cross_weights(layer, head) for head in range(trace.view.heads)])


def closure_error(trace: Trace, layer: int) -> float:
    """|x_mid - x - sum_h Delta_h - bias| / |x_mid - x|, over the whole cloud.

    A displacement that drowns in the rounding of the points themselves is measured against that rounding.
    """
    before, after = trace.points[trace.where[layer]], trace.points[trace.middle[layer]]
    return _open_by(trace.view.dtype, before, after, trace.displacements(layer), trace.bias(layer))


def cross_closure_error(trace: Trace, layer: int) -> float:
    """The same for what cross attention adds to the target."""
    at = trace.index(Step(layer, "resid_mid"))
    moved, bias = trace.cross_displacements(layer), trace.cross_bias(layer)
    return _open_by(trace.view.dtype, trace.points[at], trace.points[at + 1], moved, bias)


def _open_by(dtype: torch.dtype, before: Tensor, after: Tensor, moved: Float[Tensor, "h n d"], bias: Tensor) -> float:
    rounding = 2 * torch.finfo(dtype).eps / slack(dtype) * after.norm()
    return float(
        (after - before - moved.sum(0) - bias).norm() / (after - before).norm().maximum(rounding).clamp(min=1e-30)
    )


def operators_error(heads: Heads, x: Float[Tensor, "n d"]) -> float:
    """|q̂ - q| / |q| with q̂ = x̂ through the folded matrices, the worst of q, k and v."""
    parts = (heads.W_Q, heads.b_Q, heads.q_norm), (heads.W_K, heads.b_K, heads.k_norm), (heads.W_V, heads.b_V, None)
    pairs = zip((through(heads.norm, heads.norm.hat(x), *part) for part in parts), heads.read(x), strict=True)
    return _worst(float((mine - own[0]).norm() / own.norm().clamp(min=1e-30)) for mine, own in pairs)


def cross_operators_error(trace: Trace, layer: int) -> float:
    """The same for cross attention: behind the norm of the target, and behind that of the source."""
    crossing, (x, memory) = trace.view.crossing[layer], trace.across(layer)
    return _worst((operators_error(crossing.asking, x), operators_error(crossing.answering, memory)))


def _worst(errors: Iterable[float]) -> float:
    """The largest; NaN where there is one (Python's own max may lose it)."""
    return float(torch.tensor(list(errors)).max())
