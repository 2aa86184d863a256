"""The View is proved, not assumed: on eight tokens, what it recomputes must equal what the model computes."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rheoscope.shapes import RheoscopeError
from rheoscope.space.trace import Trace

TOKENS = 8


@dataclass(frozen=True)
class Certificate:
    """How far recomputation is from the model: weights (largest difference), closure (share of the displacement)."""

    weights: float
    closure: float
    tokens: int
    dtype: str

    def __str__(self) -> str:
        return f"exact on {self.tokens} tokens in {self.dtype}: weights off by {self.weights:.1e}, closure by {self.closure:.1e}"


@torch.no_grad()
def certify(model: Any) -> Certificate:
    """Weights and closure of every layer on eight tokens; refuses a model that the View does not reproduce."""
    vocabulary, context = len(model.view.embed), model.view.facts.get("context") or TOKENS
    n = min(TOKENS, context)
    ids = torch.linspace(vocabulary // 3, vocabulary - 1, n).long()
    trace, own = eager(model, ids)
    weights = max(_weights_error(trace, layer, of_layer) for layer, of_layer in enumerate(own))
    closure = max(closure_error(trace, layer) for layer in range(model.view.layers))
    dtype = trace.points.dtype
    slack = 1e-4 if dtype.itemsize >= 4 else 5e-2
    found = Certificate(weights, closure, n, str(dtype).removeprefix("torch."))
    if not (weights <= slack and closure <= slack):
        raise RheoscopeError(
            f"the description of {model.view.facts.get('family')} does not reproduce this model (weights off by {weights:.1e}, "
            f"closure by {closure:.1e}); nothing computed from it would be true: please report the config"
        )
    return found


@torch.no_grad()
def eager(model: Any, ids: Tensor) -> tuple[Trace, list[Tensor]]:
    """One run of the model's eager implementation: its points, and its own weights (h, n, n) of every layer on them."""
    original, own = model.network.config._attn_implementation, []
    keep = [
        attn.register_forward_hook(lambda module, args, out: own.append(out[1][0])) for attn in model.said.attentions
    ]
    model.network.set_attn_implementation("eager")
    try:
        trace = model.trace(ids)
    finally:
        model.network.set_attn_implementation(original)
        for handle in keep:
            handle.remove()
    return trace, own


def _weights_error(trace: Trace, layer: int, own: Tensor) -> float:
    ours = torch.stack([trace.weights(layer, head) for head in range(len(own))])
    return float((ours - own.to(ours.dtype)).abs().max())


def closure_error(trace: Trace, layer: int) -> float:
    """|x_mid - x - sum_h Delta_h - bias| / |x_mid - x|, over the whole cloud."""
    moved = trace.points[trace.middle[layer]] - trace.points[trace.where[layer]]
    rebuilt = trace.displacements(layer).sum(0) + trace.bias(layer)
    return float((moved - rebuilt).norm() / moved.norm().clamp(min=1e-30))
