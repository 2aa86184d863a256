"""The layout of SAELens: the settings of `cfg.json` (version 3 to 6) and the tensors of `sae_weights.safetensors`."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.running.feature_activations import FeatureActivation, Gated, JumpReLU, ReLU, TopK
from rheoscope.running.feature_sites import Site, check_writable
from rheoscope.running.feature_weights import FeatureWeights
from rheoscope.shapes import RheoscopeError

OLD_NAMES = {
    "hook_point": "hook_name",
    "hook_point_head_index": "hook_head_index",
    "activation_fn_str": "activation_fn",
}
"""Names of settings before version 6 → names today."""
TRANSCODERS = ("transcoder", "skip_transcoder", "jumprelu_transcoder", "jumprelu_skip_transcoder")
ARCHITECTURES = ("standard", "jumprelu", "topk", "gated", *TRANSCODERS)
ACTIVATIONS = ("relu", "topk")


def sae_lens_features(config: Mapping[str, Any], tensors: Mapping[str, Tensor], site: Site | None) -> FeatureWeights:
    """The dictionary of a config and its tensors. Settings that this function does not know are refused by name."""
    settings = {OLD_NAMES.get(name, name): value for name, value in {**config, **config.get("metadata", {})}.items()}
    architecture = _architecture(settings)
    _refuse_settings(settings)
    W_enc, W_dec, b_dec = (_tensor(tensors, name) for name in ("W_enc", "W_dec", "b_dec"))
    W_dec = _with_finetuned_scale(W_dec, tensors, settings)
    b_enc = tensors.get("b_enc", torch.zeros(W_enc.shape[-1])).float()
    if settings.get("rescale_acts_by_decoder_norm"):
        lengths = W_dec.norm(dim=-1)
        W_enc, b_enc, W_dec = W_enc * lengths, b_enc * lengths, W_dec / lengths[:, None]
    is_transcoder = architecture in TRANSCODERS
    reads = site or Site.of_hook(str(settings.get("hook_name")))
    writes = Site.of_hook(str(settings.get("hook_name_out"))) if is_transcoder else reads
    check_writable(writes)
    skip = _tensor(tensors, "W_skip").mT if "skip" in architecture else None
    subtracts_bias = bool(settings.get("apply_b_dec_to_input", True)) and not is_transcoder
    return FeatureWeights(
        W_enc,
        torch.zeros_like(b_enc) if architecture == "gated" else b_enc,
        W_dec,
        b_dec,
        _activation(architecture, settings, tensors),
        reads,
        writes,
        b_dec if subtracts_bias else None,
        _normalisation(settings),
        bool((settings.get("model_from_pretrained_kwargs") or {}).get("center_writing_weights")),
        skip,
        {"layout": "SAELens", "architecture": architecture, "model": settings.get("model_name")},
    )


def sae_lens_config(features: FeatureWeights) -> dict[str, Any]:
    """The config of a dictionary of one site, as SAELens 6 reads it."""
    kinds = {TopK: "topk", JumpReLU: "jumprelu"}
    config: dict[str, Any] = {
        "architecture": kinds.get(type(features.activation), "standard"),
        "d_in": features.width,
        "d_sae": len(features),
        "dtype": "float32",
        "apply_b_dec_to_input": features.input_bias is not None,
        "normalize_activations": features.normalisation,
        "metadata": {
            "sae_lens_version": "6.0.0",
            "hook_name": features.reads.hook_name,
            "model_name": features.facts.get("model"),
            "model_from_pretrained_kwargs": {"center_writing_weights": features.subtracts_mean},
        },
    }
    return config | ({"k": features.activation.k} if isinstance(features.activation, TopK) else {})


def _architecture(settings: Mapping[str, Any]) -> str:
    """The architecture by name, checked. Before version 6, top-k was the activation function of a standard autoencoder."""
    architecture = str(settings.get("architecture", "standard"))
    activation = str(settings.get("activation_fn", "relu"))
    for received, supported, setting in (
        (architecture, ARCHITECTURES, "architecture"),
        (activation, ACTIVATIONS, "activation_fn"),
    ):
        if received not in supported:
            raise RheoscopeError(
                Message(
                    "this dictionary has {setting} {received!r}, expected one of {known}",
                    setting=setting,
                    received=received,
                    known=", ".join(supported),
                )
            )
    return "topk" if activation == "topk" and architecture == "standard" else architecture


def _refuse_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings that change what the dictionary reads in a way that no site describes."""
    reshaping = settings.get("reshape_activations", "none")
    folds_norms = (settings.get("model_from_pretrained_kwargs") or {}).get("fold_ln")
    reads_norm = any(part in str(settings.get("hook_name")) for part in ("normalized", "hook_in"))
    for name, is_refused, value in (
        ("reshape_activations", reshaping != "none", reshaping),
        ("hook_head_index", settings.get("hook_head_index") is not None, settings.get("hook_head_index")),
        ("fold_ln", bool(folds_norms) and reads_norm, folds_norms),
    ):
        if is_refused:
            raise RheoscopeError(
                Message(
                    "this dictionary has {setting} {received!r}, which cannot be read from the points of a text",
                    setting=name,
                    received=value,
                )
            )


def _normalisation(settings: Mapping[str, Any]) -> str:
    value = settings.get("normalize_activations") or "none"
    return "expected_average_only_in" if value is True else str(value)


def _with_finetuned_scale(
    W_dec: Float[Tensor, "m e"], tensors: Mapping[str, Tensor], settings: Mapping[str, Any]
) -> Float[Tensor, "m e"]:
    """The decoder times the factor of every feature that fine-tuning learned, if there is one."""
    factor = tensors.get("scaling_factor", tensors.get("finetuning_scaling_factor"))
    if factor is None or bool((factor == 1).all()):
        return W_dec
    if not settings.get("finetuning_scaling_factor", True):
        raise RheoscopeError(
            Message("this dictionary has a tensor scaling_factor, but finetuning_scaling_factor is off in its config")
        )
    return W_dec * factor.float()[:, None]


def _activation(architecture: str, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> FeatureActivation:
    if architecture.startswith("jumprelu"):
        return JumpReLU(_tensor(tensors, "threshold"))
    if architecture == "gated":
        return Gated(*(_tensor(tensors, name) for name in ("b_gate", "r_mag", "b_mag")))
    if architecture == "topk":
        k = settings.get("k", (settings.get("activation_fn_kwargs") or {}).get("k"))
        if not isinstance(k, int) or k < 1:
            raise RheoscopeError(Message("this dictionary is of kind topk, and its config has no whole number k"))
        return TopK(k)
    return ReLU()


def _tensor(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """A tensor by name in float32. Raises if the file does not hold it."""
    if name not in tensors:
        raise RheoscopeError(
            Message(
                "this dictionary has no tensor {name!r}; it holds {received}",
                name=name,
                received=", ".join(sorted(tensors)[:12]),
            )
        )
    return tensors[name].float()
