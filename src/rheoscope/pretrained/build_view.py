"""From a Hugging Face model to its View, through the description of its family."""

from typing import Any

import torch
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.pretrained.families import family_of
from rheoscope.pretrained.hf_model import Pretrained
from rheoscope.running.eval_mode import description_in_eval_mode
from rheoscope.running.half_precision import description_in_float32, embeddings_in_float32
from rheoscope.running.loading_stages import Progress
from rheoscope.running.multiple_devices import on_one_device
from rheoscope.running.weight_files import check_weights, fingerprint
from rheoscope.shapes import RheoscopeError
from rheoscope.space.view import View


def describe_model(network: Any, tokenizer: Any, name: str, progress: Progress | None = None) -> Pretrained:
    """The model with its View, before certification."""
    family = family_of(network.config)
    if network.config.num_hidden_layers < 1:
        raise RheoscopeError(
            Message("the model has {layers} layers, expected at least 1", layers=network.config.num_hidden_layers)
        )
    check_weights(network)
    description = on_one_device(description_in_float32(description_in_eval_mode(family.describe(network), network)))
    unembed_module = None if description.is_encoder else network.get_output_embeddings()
    embedding_weight = description.embedding.weight
    embed, unembedding = embeddings_in_float32(
        embedding_weight, None if unembed_module is None else unembed_module.weight.T.to(embedding_weight.device)
    )
    unembed_bias = None if unembed_module is None else getattr(unembed_module, "bias", None)
    view = View(
        layer_heads=description.layer_heads,
        embed=_compose(embed, description.embed_projection),
        embed_scale=_embedding_scale(description.embedding),
        unembed=None if unembedding is None else _compose(description.unembed_projection, unembedding),
        unembed_bias=None if unembed_bias is None else unembed_bias.to(embedding_weight.device),
        prediction_head=description.prediction_head,
        final_norm=description.final_norm,
        mlps=description.mlps,
        context_length=_context_length(family, network.config),
        logit_cap=getattr(network.config, "final_logit_softcapping", None),
        facts=facts(network, family, name, progress),
        dtype=description.embedding.weight.dtype,
    )
    return Pretrained(network, tokenizer, description, view)


def facts(network: Any, family: Any, name: str, progress: Progress | None = None) -> dict[str, Any]:
    """The provenance of a model, stored with every result."""
    weight = next(network.parameters())
    return {
        "model": name,
        "type": network.config.model_type,
        "family": family.__name__.rsplit(".", 1)[-1],
        "weights": fingerprint(network, progress=progress),
        "dtype": str(weight.dtype).removeprefix("torch."),
        "device": ", ".join(sorted({str(parameter.device) for parameter in network.parameters()})),
    }


def _embedding_scale(embedding: Any) -> float:
    """The factor of the embedding rows. Gemma has one, in the dtype of its weights."""
    return float(torch.as_tensor(getattr(embedding, "embed_scale", 1.0)).to(embedding.weight))


def _context_length(family: Any, config: Any) -> int | None:
    """The context length of the model. A family may define its own function for it."""
    if hasattr(family, "context_length"):
        return int(family.context_length(config))
    return getattr(config, "max_position_embeddings", None)


@torch.no_grad()
def _compose(first_map: Tensor | None, second_map: Tensor | None) -> Tensor:
    """The composition of two maps. A missing map is the identity, and nothing is copied."""
    if first_map is None or second_map is None:
        only_map = second_map if first_map is None else first_map
        assert only_map is not None
        return only_map
    return first_map @ second_map
