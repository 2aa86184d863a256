"""rs.load: a hub name, a directory or a transformers object becomes a Model. The one place that knows every maker."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from rheoscope.pretrained.running import Pretrained
from rheoscope.shapes import RheoscopeError


def load(
    source: str | Path | Any,
    device: str | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    tokenizer: Any = None,
    untrained: bool = False,
) -> Pretrained:
    """Open a pretrained Transformer as operators on one space E.

    **Answers** with a Model: `model.view` (every head as M and F), `model.trace(text)` (the text as points of E),
    `model.run(text, edit=…, hooks=…)` (the same with heads and points changed).

    **Takes** a hub name, a directory, or a `transformers` model already built (with `tokenizer=`). `untrained=True` gives
    the same architecture at its initial weights. float32 on the CPU, the checkpoint's dtype on a GPU, unless `dtype` says.

    **Laws** logits are the untouched model's, bit for bit; weights and displacements recomputed from the View equal the
    model's, proved on eight tokens at every load (`model.view.facts["certificate"]`); what is not known is refused.

    **Safe** safetensors only, never remote code.

    >>> import rheoscope as rs
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = rs.load(GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=9)))
    >>> model.trace([1, 2, 3]).points.shape
    torch.Size([5, 3, 8])
    """
    from rheoscope.pretrained.checkpoint import opened, taken

    if isinstance(source, nn.Module):
        network = taken(source, device, dtype, untrained)
        return _model(network, tokenizer, getattr(network.config, "_name_or_path", "") or type(network).__name__)
    if not isinstance(source, str | Path):
        raise RheoscopeError(f"load takes a name, a directory or a transformers model, got {type(source).__name__}")
    network, found = opened(source, device, dtype, revision, untrained)
    return _model(network, tokenizer or found, str(source))


def _model(network: Any, tokenizer: Any, name: str) -> Pretrained:
    from rheoscope.pretrained.certificate import certify
    from rheoscope.pretrained.describing import described

    model = described(network, tokenizer, name)
    facts = model.view.facts | {"certificate": certify(model)}
    return replace(model, view=replace(model.view, facts=facts))
