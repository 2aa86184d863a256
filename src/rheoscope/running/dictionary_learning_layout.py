"""The layout of dictionary_learning: the trainer's `config.json` and the tensors of `ae.pt`, saved as safetensors."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.running.feature_activations import FeatureActivation, Gated, JumpReLU, ReLU, TopK
from rheoscope.running.feature_sites import SITE_ADVICE, Site
from rheoscope.running.feature_weights import FeatureWeights
from rheoscope.shapes import RheoscopeError

CLASSES: dict[str, tuple[str, ...]] = {
    "AutoEncoder": ("encoder.weight", "encoder.bias", "decoder.weight", "bias"),
    "AutoEncoderNew": ("encoder.weight", "encoder.bias", "decoder.weight", "decoder.bias"),
    "AutoEncoderTopK": ("encoder.weight", "encoder.bias", "decoder.weight", "b_dec", "k"),
    "BatchTopKSAE": ("encoder.weight", "encoder.bias", "decoder.weight", "b_dec", "threshold"),
    "GatedAutoEncoder": ("encoder.weight", "decoder.weight", "decoder_bias", "r_mag", "gate_bias", "mag_bias"),
    "JumpReluAutoEncoder": ("W_enc", "b_enc", "W_dec", "b_dec", "threshold"),
    "MatryoshkaBatchTopKSAE": ("W_enc", "b_enc", "W_dec", "b_dec", "threshold", "group_sizes"),
}
"""Class of a dictionary → its tensors."""
CLASSES_BY_TENSORS = (
    "MatryoshkaBatchTopKSAE",
    "JumpReluAutoEncoder",
    "GatedAutoEncoder",
    "AutoEncoderNew",
    "AutoEncoder",
)
"""The classes that their tensors alone tell apart. AutoEncoderTopK and BatchTopKSAE have the same tensors."""
KEEPS_INPUT = ("AutoEncoderNew", "JumpReluAutoEncoder")
"""The classes that subtract no bias from their inputs."""


def dictionary_learning_features(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], site: Site | None
) -> FeatureWeights:
    """The dictionary of a config and its tensors. A class that this function does not know is refused by name."""
    trainer = config.get("trainer", {})
    name = _class_name(trainer, tensors)
    floats = {key: tensor.float() for key, tensor in tensors.items()}
    W_enc = floats["W_enc"] if "W_enc" in floats else floats["encoder.weight"].mT
    W_dec = floats["W_dec"] if "W_dec" in floats else floats["decoder.weight"].mT
    b_enc = floats.get("b_enc", floats.get("encoder.bias", torch.zeros(W_enc.shape[-1])))
    b_dec = next(floats[key] for key in ("b_dec", "bias", "decoder.bias", "decoder_bias") if key in floats)
    place = site or _site(trainer)
    return FeatureWeights(
        W_enc,
        b_enc,
        W_dec,
        b_dec,
        _activation(name, floats),
        place,
        place,
        None if name in KEEPS_INPUT else b_dec,
        facts={"layout": "dictionary_learning", "architecture": name, "model": trainer.get("lm_name")},
    )


def _class_name(trainer: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """The class that the config names, or the only one with these tensors."""
    name = trainer.get("dict_class")
    if name is None:
        name = next((candidate for candidate in CLASSES_BY_TENSORS if set(CLASSES[candidate]) <= set(tensors)), None)
    if name in CLASSES and set(CLASSES[name]) <= set(tensors):
        return str(name)
    missing = sorted(set(CLASSES.get(str(name), ())) - set(tensors))
    if missing:
        raise RheoscopeError(
            Message(
                "a dictionary of class {name} has the tensors {missing}, which this file lacks; it holds {received}",
                name=str(name),
                missing=", ".join(missing),
                received=", ".join(sorted(tensors)[:12]),
            )
        )
    if name is None and "k" in tensors:
        raise RheoscopeError(
            Message(
                "these tensors are those of AutoEncoderTopK and of BatchTopKSAE; put the trainer's config.json next to them"
            )
        )
    raise RheoscopeError(
        Message(
            "unknown layout of a dictionary: class {name} with the tensors {received}; expected one of {known}",
            name=str(name),
            received=", ".join(sorted(tensors)[:12]),
            known=", ".join(CLASSES),
        )
    )


def _site(trainer: Mapping[str, Any]) -> Site:
    """The site that the trainer names. A layer alone does not say which of its points was read."""
    submodule = trainer.get("submodule_name")
    if submodule is None:
        raise RheoscopeError(Message("the files of this dictionary do not name its hook point"), SITE_ADVICE)
    return Site.of_hook(str(submodule))


def _activation(name: str, tensors: Mapping[str, Tensor]) -> FeatureActivation:
    if name == "AutoEncoderTopK":
        return TopK(int(tensors["k"]))
    if name in ("BatchTopKSAE", "MatryoshkaBatchTopKSAE", "JumpReluAutoEncoder"):
        return JumpReLU(tensors["threshold"])
    if name == "GatedAutoEncoder":
        return Gated(*(tensors[key] for key in ("gate_bias", "r_mag", "mag_bias")))
    return ReLU()
