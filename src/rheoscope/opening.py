"""rs.load: a hub name, a directory or a model object becomes a Model. The one place that knows every maker."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from rheoscope.running.loading_stages import Progress, stage
from rheoscope.running.runner import Running
from rheoscope.running.weight_files import usual_device
from rheoscope.shapes import RheoscopeError

Stages = tuple[Progress, Progress, Progress]
"""Who is told of reading, of hashing and of proving."""
DEFAULT = Path(__file__).parent / "models" / "default"
"""The small trained model that comes with the package."""


def load(
    source: str | Path | Any = None,
    device: str | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    tokenizer: Any = None,
    untrained: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Running:
    """Open a Transformer as operators on one space E.

    **Answers** with a Model: `model.view` (every head as M and F), `model.trace(text)` (the text as points of E),
    `model.run(text, edit=…, hooks=…)` (the same with heads and points changed).

    **Takes** nothing (the small model that comes with the package), a hub name, a directory, or a model already built, of
    `transformers` or of `rheoscope.models` (with `tokenizer=`). `untrained=True` gives the same architecture at
    the initial weights of its own family, the control that every claim about training needs; no weight file is read,
    and `seed` draws other ones. `device` is a GPU where there is one that works, the CPU else; a model already built stays where it is.
    `device="auto"` lays the layers of a pretrained model that is larger than a GPU over all of them (by accelerate).
    float32 on the CPU, the checkpoint's dtype on a GPU, unless `dtype` says.
    `progress(done, total)` is told how far reading, hashing and proving are; the command draws a bar of it.

    **Laws** logits are the untouched model's, bit for bit; weights and displacements recomputed from the View equal the
    model's, proved on eight tokens at every load (`model.view.facts["certificate"]`); what is not known is refused, and
    so are weights that the stream needs and the checkpoint lacks; those that are no part of it the certificate names.

    **Safe** safetensors only, never remote code.

    >>> import rheoscope as rs
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = rs.load(GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=9)))
    >>> model.trace([1, 2, 3]).points.shape
    torch.Size([5, 3, 8])
    """
    drawn = _drawn(untrained, seed)
    if source is None and not (DEFAULT / "config.json").is_file():
        raise RheoscopeError(
            f"this installation has no default model ({DEFAULT}); type the name or the directory of another model"
        )
    source = DEFAULT if source is None else source
    ours = _is_ours(source)
    device = device_for(source, device, ours)
    stages = stage(progress, 0, 50), stage(progress, 50, 75), stage(progress, 75, 100)
    if ours:
        return _ours(source, device, dtype, tokenizer, drawn, stages)
    return _theirs(source, device, dtype, revision, tokenizer, drawn, stages)


def device_for(source: Any, device: str | None, ours: bool) -> str | None:
    """The device by name: a model already built stays where it is, and `auto` is for what may be larger than a GPU."""
    usual = (device is None and not isinstance(source, nn.Module)) or (
        device == "auto" and (ours or usual_device() == "cpu")
    )
    return usual_device() if usual else device


def _drawn(untrained: bool, seed: int) -> int | None:
    """The seed of initial weights, or None where those of the source are wanted."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise RheoscopeError(f"a seed is a whole number, 0 or larger, got {seed!r}; type seed=0")
    if seed and not untrained:
        raise RheoscopeError(
            f"seed={seed} draws initial weights, and trained ones were asked for; type untrained=True too"
        )
    return seed if untrained else None


def _called(name: str, drawn: int | None) -> str:
    """A control never goes by the name of the model that it controls."""
    return name if drawn is None else f"{name}, untrained (seed {drawn})"


def _is_ours(source: Any) -> bool:
    """Whether `models/` made it; everything else is for transformers, which takes seconds to import."""
    if isinstance(source, nn.Module):
        from rheoscope.models.transformer import Transformer, Translator

        return isinstance(source, Transformer | Translator)
    if not isinstance(source, str | Path):
        return False
    try:
        told = json.loads((Path(source) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(told, dict) and told.get("model_type") == "rheoscope"


def _ours(
    source: Any, device: str | None, dtype: str | None, tokenizer: Any, drawn: int | None, stages: Stages
) -> Running:
    from rheoscope.models.build_view import described
    from rheoscope.models.certificate import certify
    from rheoscope.models.checkpoint import opened, taken

    reading, hashing, proving = stages
    if isinstance(source, nn.Module):
        network, found = taken(source, device, dtype, drawn), None  # type: ignore[arg-type]
        name = type(source).__name__
    else:
        network, found = opened(source, device, dtype, drawn, reading)
        name = "the default model" if source == DEFAULT else str(source)
    model = described(network, tokenizer or found, _called(name, drawn), hashing)
    proved = model.proved(certify(model))
    proving(1, 1)
    return proved


def _theirs(
    source: Any,
    device: str | None,
    dtype: str | None,
    revision: str | None,
    tokenizer: Any,
    drawn: int | None,
    stages: Stages,
) -> Running:
    from rheoscope.pretrained.build_view import described
    from rheoscope.pretrained.certificate import certify
    from rheoscope.pretrained.checkpoint import opened, taken

    reading, hashing, proving = stages
    found, ignored = None, tuple[str, ...]()
    if isinstance(source, nn.Module):
        network = taken(source, device, dtype, drawn)
        name = getattr(network.config, "_name_or_path", "") or type(network).__name__
    elif isinstance(source, str | Path):
        network, found, ignored = opened(source, device, dtype, revision, drawn, reading)
        name = str(source)
    else:
        raise RheoscopeError(f"load takes a name, a directory or a transformers model, got {type(source).__name__}")
    model = described(network, tokenizer or found, _called(name, drawn), hashing)
    return model.proved(replace(certify(model, proving), ignored=ignored))
