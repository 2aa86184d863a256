"""From a Hugging Face model to its View, through the description of its family."""

from typing import Any

import torch
from torch import Tensor

from rheoscope.pretrained.families import family_of
from rheoscope.pretrained.hf_model import Pretrained
from rheoscope.running.half_precision import in_float32, words_in_float32
from rheoscope.running.loading_stages import Progress
from rheoscope.running.multiple_devices import on_one_device
from rheoscope.running.weight_files import check_weights, fingerprint
from rheoscope.space.view import View


def described(network: Any, tokenizer: Any, name: str, progress: Progress | None = None) -> Pretrained:
    """The model with its View, not yet certified."""
    family = family_of(network.config)
    check_weights(network)
    description = on_one_device(in_float32(family.describe(network)))
    unembed = None if description.encoder else network.get_output_embeddings()
    own = description.embed.weight
    embed, read_out = words_in_float32(own, None if unembed is None else unembed.weight.T.to(own.device))
    bias = None if unembed is None else getattr(unembed, "bias", None)
    view = View(
        blocks=description.blocks,
        embed=_through(embed, description.into),
        embed_scale=_scale(description.embed),
        unembed=None if read_out is None else _through(description.out_of, read_out),
        unembed_bias=None if bias is None else bias.to(own.device),
        final_norm=description.final_norm,
        mlps=description.mlps,
        context=_context(network.config),
        logit_cap=getattr(network.config, "final_logit_softcapping", None),
        facts=facts(network, family, name, progress),
        dtype=description.embed.weight.dtype,
    )
    return Pretrained(network, tokenizer, description, view)


def facts(network: Any, family: Any, name: str, progress: Progress | None = None) -> dict[str, Any]:
    """Where a result comes from: stored with everything that is computed."""
    weight = next(network.parameters())
    return {
        "model": name,
        "type": network.config.model_type,
        "family": family.__name__.rsplit(".", 1)[-1],
        "weights": fingerprint(network, progress=progress),
        "dtype": str(weight.dtype).removeprefix("torch."),
        "device": ", ".join(sorted({str(x.device) for x in network.parameters()})),
    }


def _scale(embedding: Any) -> float:
    """What the module multiplies its rows by; Gemma does, in the dtype of the weights."""
    return float(torch.as_tensor(getattr(embedding, "embed_scale", 1.0)).to(embedding.weight))


def _context(config: Any) -> int | None:
    """How many tokens the model reads; RoBERTa's positions start after that of its padding token."""
    longest = getattr(config, "max_position_embeddings", None)
    return longest - config.pad_token_id - 1 if config.model_type == "roberta" else longest


@torch.no_grad()
def _through(first: Tensor | None, then: Tensor | None) -> Tensor:
    """One map after the other; a map that is not there changes nothing (and copies nothing)."""
    if first is None or then is None:
        kept = then if first is None else first
        assert kept is not None
        return kept
    return first @ then
