"""The View is proved, not assumed: on eight tokens, what it recomputes must equal what the model computes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.running.loading_stages import Progress
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads, through
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
    against what one layer rounds by in `dtype` (`slack`). `scores` is the largest one of the layers in which half precision rounds
    scores by so much that its weights move; 0 where none is.
    `ignored` names weights that the checkpoint has or lacks and that are no part of the stream (a pooler, a classifier)."""

    weights: float
    closure: float
    operators: float
    tokens: int
    dtype: str
    ignored: tuple[str, ...] = ()
    scores: float = 0.0
    device: str = "cpu"

    def __str__(self) -> str:
        return f"{self._sense}: {self.errors}{self._without}"

    @property
    def _sense(self) -> str:
        dtype = getattr(torch, self.dtype)
        if dtype.itemsize >= 4:
            return f"exact on {self.tokens} tokens in {self.dtype}{self._place}"
        rounding = f"{self.dtype} ({torch.finfo(dtype).eps:.1e})"
        return f"exact to the rounding of {rounding} on {self.tokens} tokens{self._place}"

    @property
    def _place(self) -> str:
        return "" if self.device == "cpu" else f" on {self.device}"

    @property
    def _without(self) -> str:
        more = f" and {len(self.ignored) - 3} more" if len(self.ignored) > 3 else ""
        return f"; ignored, no part of the stream: {', '.join(self.ignored[:3])}{more}" if self.ignored else ""

    @property
    def parts(self) -> tuple[float, float, float, float]:
        return self.weights, self.closure, self.operators, self.scores

    @property
    def errors(self) -> str:
        rounded = f" (scores of up to {self.scores:.0f} are rounded too)" if self.scores else ""
        return f"weights off by {self.weights:.1e}{rounded}, closure by {self.closure:.1e}, operators by {self.operators:.1e}"


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
        weights, closure = _weights_error(block.every_weights(x), of_layer), closure_error(trace, layer)
        scores = _rounded_scores(trace, max(weights, closure), partial(trace.scores, layer))
        found.append((weights, closure, operators_error(block, x), scores))
        if progress is not None:
            progress(layer + 1, trace.view.layers)
    return _refused_if_wrong(trace, found)


@torch.no_grad()
def certify_across(trace: Trace, own: Sequence[Float[Tensor, "h n s"]]) -> Certificate:
    """The same for the cross attention of every layer."""
    found = []
    for layer, of_layer in enumerate(own):
        weights, closure = _weights_error(_across(trace, layer), of_layer), cross_closure_error(trace, layer)
        scores = _rounded_scores(trace, max(weights, closure), partial(trace.cross_scores, layer))
        found.append((weights, closure, cross_operators_error(trace, layer), scores))
    return _refused_if_wrong(trace, found)


def together(found: Sequence[Certificate]) -> Certificate:
    """One certificate for several parts of a model: the worst of each error."""
    weights, closure, operators, scores = (_worst(part) for part in zip(*(one.parts for one in found), strict=True))
    return replace(found[0], weights=weights, closure=closure, operators=operators, scores=scores)


def _refused_if_wrong(trace: Trace, layers: Sequence[tuple[float, float, float, float]]) -> Certificate:
    dtype = trace.view.dtype
    weights, closure, operators, scores = (_worst(part) for part in zip(*layers, strict=True))
    name, device = str(dtype).removeprefix("torch."), str(trace.points.device)
    found = Certificate(weights, closure, operators, len(trace), name, scores=scores, device=device)
    unexplained = (_worst((w / max(1.0, s), c / max(1.0, s), o)) for w, c, o, s in layers)
    if not _worst(unexplained) <= slack(dtype):
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


def _rounded_scores(trace: Trace, error: float, scores: Callable[[int], Tensor]) -> float:
    """The largest score of a layer, where an error needs it for its reason.

    A model in half precision may round a score s by up to |s| eps / 2, which moves weights, and what they carry, by as much:
    where scores are large, its own weights are that far from what its own queries and keys give.
    """
    if error <= slack(trace.view.dtype) or trace.view.dtype.itemsize >= 4:
        return 0.0
    return max(float(scores(head).abs().max()) for head in range(trace.view.heads))


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
