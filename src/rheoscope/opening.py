"""rs.load: a hub name, a directory or a model object becomes a Model. The one place that knows every maker."""

import json
from pathlib import Path
from typing import Any

from torch import nn

from rheoscope.shapes import RheoscopeError
from rheoscope.space.running import Running

DEFAULT = Path(__file__).parent / "models" / "default"
"""The small trained model that comes with the package."""


def load(
    source: str | Path | Any = None,
    device: str | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    tokenizer: Any = None,
    untrained: bool = False,
) -> Running:
    """Open a Transformer as operators on one space E.

    **Answers** with a Model: `model.view` (every head as M and F), `model.trace(text)` (the text as points of E),
    `model.run(text, edit=…, hooks=…)` (the same with heads and points changed).

    **Takes** nothing (the small model that comes with the package), a hub name, a directory, or a model already built, of
    `transformers` or of `rheoscope.models` (with `tokenizer=`). `untrained=True` gives the same architecture at its
    initial weights. float32 on the CPU, the checkpoint's dtype on a GPU, unless `dtype` says.

    **Laws** logits are the untouched model's, bit for bit; weights and displacements recomputed from the View equal the
    model's, proved on eight tokens at every load (`model.view.facts["certificate"]`); what is not known is refused.

    **Safe** safetensors only, never remote code.

    >>> import rheoscope as rs
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = rs.load(GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=9)))
    >>> model.trace([1, 2, 3]).points.shape
    torch.Size([5, 3, 8])
    """
    if source is None and not (DEFAULT / "config.json").is_file():
        raise RheoscopeError(f"this installation has no default model ({DEFAULT}); type rs.load(name or directory)")
    source = DEFAULT if source is None else source
    if _is_ours(source):
        return _ours(source, device, dtype, tokenizer, untrained)
    return _theirs(source, device, dtype, revision, tokenizer, untrained)


def _is_ours(source: Any) -> bool:
    """Whether `models/` made it; everything else is for transformers, which takes seconds to import."""
    if isinstance(source, nn.Module):
        from rheoscope.models.transformer import Transformer, Translator

        return isinstance(source, Transformer | Translator)
    if not isinstance(source, str | Path):
        return False
    try:
        told = json.loads((Path(source) / "config.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(told, dict) and told.get("model_type") == "rheoscope"


def _ours(source: Any, device: str | None, dtype: str | None, tokenizer: Any, untrained: bool) -> Running:
    from rheoscope.models.checkpoint import opened, taken
    from rheoscope.models.seeing import certify, seen

    if isinstance(source, nn.Module):
        model = seen(taken(source, device, dtype, untrained), tokenizer, type(source).__name__)  # type: ignore[arg-type]
    else:
        network, found = opened(source, device, dtype, untrained)
        model = seen(network, tokenizer or found, "the default model" if source == DEFAULT else str(source))
    return model.proved(certify(model))


def _theirs(
    source: Any, device: str | None, dtype: str | None, revision: str | None, tokenizer: Any, untrained: bool
) -> Running:
    from rheoscope.pretrained.certificate import certify
    from rheoscope.pretrained.checkpoint import opened, taken
    from rheoscope.pretrained.describing import described

    if isinstance(source, nn.Module):
        network = taken(source, device, dtype, untrained)
        name = getattr(network.config, "_name_or_path", "") or type(network).__name__
        model = described(network, tokenizer, name)
    elif isinstance(source, str | Path):
        network, found = opened(source, device, dtype, revision, untrained)
        model = described(network, tokenizer or found, str(source))
    else:
        raise RheoscopeError(f"load takes a name, a directory or a transformers model, got {type(source).__name__}")
    return model.proved(certify(model))
