"""From a Hugging Face model to its View, through the description of its family."""

from typing import Any

import torch
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.pretrained.adapter_layers import adapter_state, stored_module
from rheoscope.pretrained.effective_weights import effective_weights
from rheoscope.pretrained.families import family_of
from rheoscope.pretrained.feature_model import FeatureModel
from rheoscope.pretrained.feature_pair import FeaturePair, extractor_of
from rheoscope.pretrained.finder.describe_pair import describe_pair
from rheoscope.pretrained.finder.tape_file import TapeFile
from rheoscope.pretrained.hf_model import Pretrained, PretrainedPair
from rheoscope.pretrained.network_inputs import is_pair, main_input, reads_tokens
from rheoscope.running.eval_mode import description_in_eval_mode
from rheoscope.running.half_precision import description_in_float32, embeddings_in_float32
from rheoscope.running.loading_stages import Progress
from rheoscope.running.multiple_devices import on_one_device
from rheoscope.running.network_walk import parameters_of
from rheoscope.running.stream import ModelDescription
from rheoscope.running.weight_files import checked_fingerprint
from rheoscope.shapes import RheoscopeError
from rheoscope.space.view import DISTINCT_LAYERS, View


def describe_model(
    network: Any, tokenizer: Any, name: str, progress: Progress | None = None, tapes: TapeFile | None = None
) -> Pretrained:
    """The model with its View, before certification. A stored tape spares the finder a forward pass."""
    family = family_of(network.config)
    n_layers = getattr(network.config.get_text_config(), "num_hidden_layers", 1)
    if n_layers is not None and n_layers < 1:
        raise RheoscopeError(Message("the model has {layers} layers, expected at least 1", layers=n_layers))
    model_facts = facts(network, family, name, progress)
    if is_pair(network):
        source, target = (finished(x, network) for x in describe_pair(network, tapes))
        source_facts = model_facts if reads_tokens(network) else model_facts | {"input": main_input(network)}
        views = [build_view(source, network, None, source_facts), build_view(target, network, None, model_facts)]
        parts = target, views[1], source, views[0]
        if not reads_tokens(network):
            return FeaturePair(network, getattr(tokenizer, "tokenizer", tokenizer), *parts, extractor_of(tokenizer))
        return PretrainedPair(network, tokenizer, *parts)
    options = () if tapes is None else (tapes,)
    description = finished(family.describe(network, *options), network)
    if not reads_tokens(network):
        view = build_view(description, network, None, model_facts | {"input": main_input(network)})
        return FeatureModel(network, tokenizer, description, view)
    return Pretrained(
        network,
        tokenizer,
        description,
        build_view(description, network, _context_length(family, network.config), model_facts),
    )


def describe_network(network: Any) -> ModelDescription:
    """The description of a network by its family, in float32 or better, on one device and in evaluation mode."""
    return finished(family_of(network.config).describe(network), network)


def finished(description: ModelDescription, network: Any) -> ModelDescription:
    """The description in evaluation mode, in float32 or better, on one device."""
    return on_one_device(description_in_float32(description_in_eval_mode(description, network)))


def build_view(
    description: ModelDescription, network: Any, context_length: int | None, model_facts: dict[str, Any]
) -> View:
    """The weights of a description as operators on E."""
    has_lens = not description.is_encoder and description.unembed_scale is not None
    unembed_module = network.get_output_embeddings() if has_lens else None
    embedding_weight = effective_weights(description.embedding).weight
    unembed_weight, own_bias = (None, None) if unembed_module is None else effective_weights(unembed_module)
    embed, unembedding = embeddings_in_float32(
        embedding_weight, None if unembed_weight is None else unembed_weight.T.to(embedding_weight.device)
    )
    unembed_bias = None if unembed_module is None else _unembed_bias(description, own_bias)
    return View(
        layer_heads=description.layer_heads,
        embed=_compose(embed, description.embed_projection),
        embed_scale=_embedding_scale(description),
        unembed=None if unembedding is None else _scaled_unembedding(description, unembedding),
        unembed_bias=None if unembed_bias is None else unembed_bias.to(embedding_weight.device),
        prediction_head=description.prediction_head,
        final_norm=description.final_norm,
        mlps=description.mlps,
        context_length=description.context_length or context_length,
        logit_cap=getattr(network.config.get_text_config(), "final_logit_softcapping", None),
        facts=model_facts | _structure_facts(description),
        cross_heads=description.cross_heads,
        dtype=description.embedding.weight.dtype,
    )


def facts(network: Any, family: Any, name: str, progress: Progress | None = None) -> dict[str, Any]:
    """The provenance of a model, stored with every result."""
    weights = parameters_of(network)
    return {
        "model": name,
        "type": network.config.model_type,
        "family": getattr(family, "FAMILY", family.__name__.rsplit(".", 1)[-1]),
        "weights": checked_fingerprint(network, adapter_state(network), progress),
        "dtype": str(weights[0].dtype).removeprefix("torch."),
        "device": ", ".join(sorted({str(weight.device) for weight in weights})),
    }


def _structure_facts(description: ModelDescription) -> dict[str, Any]:
    """The blocks that have no M and no F, the number of mixed streams, and of layers where some run several times, if there are any."""
    names, n_streams = description.opaque_blocks, description.n_streams
    n_distinct = len({id(module) for module in description.attention_modules})
    return (
        ({"opaque_blocks": ", ".join(names)} if names else {})
        | ({"streams": n_streams} if n_streams > 1 else {})
        | ({DISTINCT_LAYERS: n_distinct} if n_distinct < len(description.layer_heads) else {})
    )


def _unembed_bias(description: ModelDescription, own_bias: Tensor | None) -> Tensor | None:
    """The bias of the unembedding, and one that is added outside of it."""
    biases = [x for x in (own_bias, description.unembed_bias) if x is not None]
    return sum(biases[1:], biases[0]) if biases else None


def _scaled_unembedding(description: ModelDescription, unembedding: Tensor) -> Tensor:
    """The unembedding as a map of the last normalised points, times the factor of the logits."""
    unembed = _compose(description.unembed_projection, unembedding)
    scale = 1.0 if description.unembed_scale is None else description.unembed_scale
    return unembed if scale == 1 else unembed * scale


def _embedding_scale(description: ModelDescription) -> float:
    """The factor of the embedding rows. Gemma has one, in the dtype of its weights."""
    embedding = description.embedding
    if description.embed_scale is not None:
        return description.embed_scale
    module = stored_module(embedding)
    return float(torch.as_tensor(getattr(module, "embed_scale", 1.0)).to(module.weight))


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
