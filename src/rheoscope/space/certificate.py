"""The View is proved, not assumed: on eight tokens, what it recomputes must equal what the model computes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads, Norm
from rheoscope.space.trace import Trace
from rheoscope.space.view import View

TOKENS = 8


@dataclass(frozen=True)
class Certificate:
    """How far recomputation is from the model: weights (largest difference), closure (share of the displacement),
    operators (x̂ through the matrices of M and F against the model's own q, k, v, as a share of them)."""

    weights: float
    closure: float
    operators: float
    tokens: int
    dtype: str

    def __str__(self) -> str:
        return f"exact on {self.tokens} tokens in {self.dtype}: {self.errors}"

    @property
    def errors(self) -> str:
        return f"weights off by {self.weights:.1e}, closure by {self.closure:.1e}, operators by {self.operators:.1e}"


def probe(view: View) -> Int[Tensor, " n"]:
    """The eight tokens that every model is asked about, or as many as it reads."""
    vocabulary, context = len(view.embed), view.facts.get("context") or TOKENS
    return torch.linspace(vocabulary // 3, vocabulary - 1, min(TOKENS, context)).long()


@torch.no_grad()
def certify(trace: Trace, own: Sequence[Float[Tensor, "h n n"]]) -> Certificate:
    """Weights, closure and operators of every layer; refuses a View that does not reproduce the model that was traced.

    `own` are the weights that the running model itself computed, layer by layer.
    """
    view, dtype = trace.view, trace.points.dtype
    layers = range(view.layers)
    found = Certificate(
        weights=_worst(_weights_error(trace, layer, of_layer) for layer, of_layer in enumerate(own)),
        closure=_worst(closure_error(trace, layer) for layer in layers),
        operators=_worst(operators_error(view.blocks[layer], trace.read_by(layer)) for layer in layers),
        tokens=len(trace),
        dtype=str(dtype).removeprefix("torch."),
    )
    if not _worst((found.weights, found.closure, found.operators)) <= slack(dtype):
        raise RheoscopeError(
            f"the description of {view.facts.get('family')} does not reproduce this model ({found.errors}); "
            "nothing computed from it would be true: please report the config"
        )
    return found


def slack(dtype: torch.dtype) -> float:
    """What rounding explains: more is a wrong description."""
    return 1e-4 if dtype.itemsize >= 4 else 5e-2


def _weights_error(trace: Trace, layer: int, own: Tensor) -> float:
    ours = torch.stack([trace.weights(layer, head) for head in range(len(own))])
    return float((ours - own.to(ours.dtype)).abs().max())


def closure_error(trace: Trace, layer: int) -> float:
    """|x_mid - x - sum_h Delta_h - bias| / |x_mid - x|, over the whole cloud.

    A displacement that drowns in the rounding of the points themselves is measured against that rounding.
    """
    dtype = trace.points.dtype
    exact = torch.promote_types(dtype, torch.float32)
    before, after = trace.points[trace.where[layer]].to(exact), trace.points[trace.middle[layer]].to(exact)
    rebuilt = trace.displacements(layer).to(exact).sum(0) + trace.bias(layer)
    rounding = torch.finfo(dtype).eps / slack(dtype) * after.norm()
    return float((after - before - rebuilt).norm() / (after - before).norm().maximum(rounding).clamp(min=1e-30))


def operators_error(heads: Heads, x: Float[Tensor, "n d"]) -> float:
    """|q̂ - q| / |q| with q̂ = x̂ through the folded matrices, the worst of q, k and v."""
    parts = (heads.W_Q, heads.b_Q, heads.q_norm), (heads.W_K, heads.b_K, heads.k_norm), (heads.W_V, heads.b_V, None)
    pairs = zip((_rebuilt(heads.norm, x, *part) for part in parts), heads.read(x), strict=True)
    return _worst(float((mine - own[0]).norm() / own.norm().clamp(min=1e-30)) for mine, own in pairs)


def _rebuilt(norm: Norm, x: Tensor, W: Tensor, b: Tensor | None, then: Norm | None) -> Float[Tensor, "h n k"]:
    y = norm.hat(x) @ norm.fold(W)
    y = y if norm.bias is None else y + (norm.bias @ W)[:, None]
    y = y if b is None else y + b[:, None]
    return y if then is None else then.hat(y) * (1.0 if then.gain is None else then.gain)


def _worst(errors: Iterable[float]) -> float:
    """The largest; NaN where there is one (Python's own max may lose it)."""
    return float(torch.tensor(list(errors)).max())
