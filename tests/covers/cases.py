"""Small models with random weights, and traces with prescribed points, for the tests of covers/."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import rheoscope as rs
from rheoscope.attention.definition import masked_scores, query_key_positions
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer


def random_model(heads: int = 1, depth: int = 1, width: int = 16, **options: Any) -> Any:
    """A model with RMSNorm, random weights and, by default, no position encoding. Tests may write into its operators."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {"vocabulary": 300, "position": "none"} | options
    return writable(rs.load(Transformer(Config(width=width, depth=depth, heads=heads, **settings)).double().eval()))


def writable(model: Any) -> Any:
    """The model without the check that its weights are unchanged. Its operators are views of its weights."""
    return model.without_check()


def trace_with_points(model: Any, cloud: Tensor) -> Any:
    """A Trace that has this cloud at every step."""
    trace = model.trace(list(range(1, len(cloud) + 1)))
    return replace(trace, points=cloud.to(trace.points).expand(len(trace.steps), -1, -1).clone())


def autograd_gradient(model, ids, layer: int, head: int, target: int, position: int) -> torch.Tensor:
    """The gradient of −log p by the scores of one head, computed by autograd through an edit of that head."""
    added_scores = torch.zeros(1, 1, len(ids), len(ids), dtype=torch.float64, requires_grad=True)

    def explicit_attention(q, k, v, mechanism):
        i, j = query_key_positions(q.shape[-2], k.shape[-2])
        s = masked_scores(mechanism, mechanism.position.encode(q, i), mechanism.position.encode(k, j), i, j)
        return mechanism.normaliser(s + added_scores) @ mechanism.value(v)

    logits = model.run(ids, edit={(layer, head): explicit_attention})
    return torch.autograd.grad(-logits[position].log_softmax(-1)[target], added_scores)[0][0, 0]
