"""Attention weights computed by Hugging Face's eager attention: the independent side of the certificate."""

from typing import Any

import torch
from torch import Tensor

from rheoscope.pretrained.hf_model import Pretrained
from rheoscope.running import certificate
from rheoscope.running.certificate import Certificate, probe_ids
from rheoscope.running.loading_stages import Progress, progress_stage
from rheoscope.space.trace import Trace


def certify(model: Pretrained, progress: Progress | None = None) -> Certificate:
    """Compare the View with the model's eager attention on a few tokens, and raise if they differ."""
    trace, eager_weights = trace_eager(model, probe_ids(model.view), progress_stage(progress, 0, 50))
    return certificate.certify(trace, eager_weights, progress_stage(progress, 50, 100))


@torch.no_grad()
def trace_eager(model: Pretrained, ids: Tensor, progress: Progress | None = None) -> tuple[Trace, list[Tensor]]:
    """One run with eager attention: its points, and the weights (h, n, n) of every layer."""
    original_implementation, eager_weights, report_progress = (
        model.network.config._attn_implementation,
        [],
        progress_stage(progress, 0, 100),
    )

    def record_weights(module: Any, args: Any, out: Any) -> None:
        eager_weights.append(out[1][0].to(model.device))
        report_progress(len(eager_weights), model.view.layers)

    handles = [attn.register_forward_hook(record_weights) for attn in model.description.attention_modules]
    model.network.set_attn_implementation("eager")
    try:
        trace = model.trace(ids)
    finally:
        model.network.set_attn_implementation(original_implementation)
        for handle in handles:
            handle.remove()
    return trace, eager_weights
