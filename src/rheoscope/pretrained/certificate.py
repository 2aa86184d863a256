"""What Hugging Face's own eager attention computes: the independent side of the certificate."""

from typing import Any

import torch
from torch import Tensor

from rheoscope.pretrained.hf_model import Pretrained
from rheoscope.running import certificate
from rheoscope.running.certificate import Certificate, probe
from rheoscope.running.loading_stages import Progress, stage
from rheoscope.space.trace import Trace


def certify(model: Pretrained, progress: Progress | None = None) -> Certificate:
    """The View against the model's eager attention on eight tokens; refused where they differ."""
    trace, own = attended(model, probe(model.view), stage(progress, 0, 50))
    return certificate.certify(trace, own, stage(progress, 50, 100))


@torch.no_grad()
def attended(model: Pretrained, ids: Tensor, progress: Progress | None = None) -> tuple[Trace, list[Tensor]]:
    """One run of the model's eager implementation: its points, and its own weights (h, n, n) of every layer on them."""
    original, own, tell = model.network.config._attn_implementation, [], stage(progress, 0, 100)

    def keep_weights(module: Any, args: Any, out: Any) -> None:
        own.append(out[1][0].to(model.device))
        tell(len(own), model.view.layers)

    keep = [attn.register_forward_hook(keep_weights) for attn in model.description.attentions]
    model.network.set_attn_implementation("eager")
    try:
        trace = model.trace(ids)
    finally:
        model.network.set_attn_implementation(original)
        for handle in keep:
            handle.remove()
    return trace, own
