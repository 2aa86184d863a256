"""What Hugging Face's own eager attention computes: the independent side of the certificate."""

from typing import Any

import torch
from torch import Tensor

from rheoscope.space import certificate
from rheoscope.space.certificate import Certificate, probe
from rheoscope.space.trace import Trace


def certify(model: Any) -> Certificate:
    """The View against the model's eager attention on eight tokens; refused where they differ."""
    return certificate.certify(*attended(model, probe(model.view)))


@torch.no_grad()
def attended(model: Any, ids: Tensor) -> tuple[Trace, list[Tensor]]:
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
