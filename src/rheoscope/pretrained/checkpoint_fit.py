"""Checks that the weights of a checkpoint fit its config: weights of the stream are required, others are listed."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from rheoscope.messages.message import Message, join
from rheoscope.pretrained.families import family_of
from rheoscope.pretrained.network_inputs import base_network, feature_arguments, is_pair, random_features, reads_tokens
from rheoscope.shapes import RheoscopeError


@torch.no_grad()
def match_weights(source: str | Path, network: Any, loading_info: dict[str, Any]) -> tuple[Any, tuple[str, ...]]:
    """The loaded network, and the names of the weights that were ignored.

    Three kinds of weights raise: those that the stream needs and that are missing or have another shape, those of a layer that the
    config does not have, and those for which a module of the stream has no place (a bias that the config denies). All others are
    ignored and returned: a missing pooler or classifier, or a head or adapter that nothing reads. An encoder without its
    language-model head becomes the bare encoder.
    """
    mismatches = {
        name: Message(
            "{name} is {stored_shape} instead of {expected_shape}",
            name=name,
            stored_shape=tuple(file_shape),
            expected_shape=tuple(config_shape),
        )
        for name, file_shape, config_shape in loading_info["mismatched_keys"]
    }
    missing, surplus = (
        sorted(set(loading_info["missing_keys"]) - set(mismatches)),
        sorted(loading_info["unexpected_keys"]),
    )
    siblings = _sibling_weights(network, surplus)
    if not (missing or mismatches or surplus):
        return network, ()
    is_encoder = _is_encoder(network)
    needed = _needed_weights(network, is_encoder, [*missing, *mismatches, *siblings.values()])
    _refuse_names(source, Message("missing"), [name for name in missing if name in needed])
    _refuse_names(source, Message("wrong shape"), [mismatches[name] for name in sorted(mismatches) if name in needed])
    n_layers = getattr(network.config.get_text_config(), "num_hidden_layers", None)
    extra_layers = [] if n_layers is None else _surplus_layer_weights(surplus, n_layers)
    _refuse_names(source, Message("of a layer that the config lacks"), extra_layers)
    _refuse_names(source, Message("without a place"), [name for name in surplus if siblings.get(name) in needed])
    unloaded_names = [*missing, *mismatches]
    _zero_weights(network, unloaded_names)
    return _usable_network(network, is_encoder, unloaded_names), tuple(sorted([*unloaded_names, *surplus]))


def _is_encoder(network: Any) -> bool:
    """Whether the network is a stack of blocks in which tokens see those after them."""
    if getattr(network.config, "is_encoder_decoder", False):
        return False
    return bool(family_of(network.config).describe(network).is_encoder)


def _refuse_names(source: str | Path, problem: Message, names: Sequence[str]) -> None:
    if names:
        raise RheoscopeError(
            Message(
                "the weights of {directory} do not fit its config ({problem}: {names}); download or save both again",
                directory=str(source),
                problem=problem,
                names=join(", ", [*names[:3], *(["…"] if len(names) > 3 else [])]),
            )
        )


def _surplus_layer_weights(surplus: Iterable[str], n_layers: int) -> list[str]:
    matches = [(name, re.search(r"\b(?:h|layers?)\.(\d+)\.", name)) for name in surplus]
    return [name for name, match in matches if match and int(match[1]) >= n_layers]


def _sibling_weights(network: Any, surplus: Iterable[str]) -> dict[str, str]:
    """For surplus weights of an existing module, the name of a weight that this module has."""
    modules = dict(network.named_modules())
    parents = {name: name.rpartition(".")[0] for name in surplus}
    leaves = {
        name: next((leaf for leaf, _ in modules[parent].named_parameters(recurse=False)), None)
        for name, parent in parents.items()
        if parent in modules
    }
    return {name: f"{parents[name]}.{leaf}" for name, leaf in leaves.items() if leaf is not None}


def _needed_weights(network: Any, is_encoder: bool, names: list[str]) -> set[str]:
    """The weights that the last point of the stream or the logits of a decoder depend on, by autograd on one token."""
    parameters = dict(network.named_parameters(remove_duplicate=False))
    candidates = [name for name in names if name in parameters and parameters[name].requires_grad]
    if candidates:
        with torch.enable_grad():
            hidden = base_network(network)(**_smallest_inputs(network)).last_hidden_state
            unembedding = None if is_encoder else network.get_output_embeddings()
            output = hidden if unembedding is None else unembedding(hidden)
            gradients = torch.autograd.grad(output.sum(), [parameters[name] for name in candidates], allow_unused=True)
        unused = {name for name, gradient in zip(candidates, gradients, strict=True) if gradient is None}
    return set(names) - unused if candidates else set(names)


def _smallest_inputs(network: Any) -> dict[str, Any]:
    """One token, or random features."""
    is_text = reads_tokens(network)
    inputs: dict[str, Any] = {} if is_text else feature_arguments(network, random_features(network))
    if not is_text and not is_pair(network):
        return inputs
    ids = torch.tensor([[network.get_input_embeddings().num_embeddings - 1]])
    inputs |= {"input_ids": ids, "use_cache": False} if is_text else {}
    return inputs | ({"decoder_input_ids": ids} if is_pair(network) else {})


def _zero_weights(network: Any, unloaded_names: Iterable[str]) -> None:
    """Set unloaded weights, which were drawn at random, to zero, so that a checkpoint has one fingerprint."""
    parameters = dict(network.named_parameters(remove_duplicate=False))
    for name in unloaded_names:
        parameters[name].zero_()


def _usable_network(network: Any, is_encoder: bool, unloaded_names: Iterable[str]) -> Any:
    """The bare encoder if weights of its language-model head are missing, since its logits would be untrained."""
    prefix, unembedding = f"{network.base_model_prefix}.", network.get_output_embeddings()
    drop_head = is_encoder and unembedding is not None and any(not name.startswith(prefix) for name in unloaded_names)
    return network.base_model if drop_head else network
