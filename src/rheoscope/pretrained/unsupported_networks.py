"""Networks that cannot be described: each is refused in one line that says why and what to do."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.pretrained.network_inputs import base_network, main_input, random_features
from rheoscope.running.eval_mode import eval_mode
from rheoscope.running.network_walk import modules_of
from rheoscope.shapes import RheoscopeError

PACKED_MODULES = ("torch.ao.nn",)
"""Packages whose modules pack their weights."""


def check_supported(network: nn.Module) -> None:
    """Raise for packed weights, weights without values, and feed-forward layers that run in chunks."""
    packages = {type(module).__module__ for module in modules_of(network)}
    if any(package.startswith(PACKED_MODULES) for package in packages):
        raise RheoscopeError(
            Message(
                "{network} is quantised by torch.ao, which packs weights so that M and F cannot be computed; use torchao, or load "
                "it without quantisation",
                network=type(network).__name__,
            )
        )
    if all(x.is_meta and type(x) is nn.Parameter for x in network.parameters()):
        raise RheoscopeError(
            Message("{network} is on the meta device, so it has no weights", network=type(network).__name__),
            Advice("AutoModelForCausalLM.from_pretrained(name)"),
        )
    chunk_size = getattr(getattr(network, "config", None), "chunk_size_feed_forward", 0) or 0
    if chunk_size > 0:
        raise RheoscopeError(
            Message(
                "chunk_size_feed_forward is {size}, so the model reads only multiples of {size} tokens; load it with 0",
                size=chunk_size,
            ),
            Advice("AutoModel.from_pretrained(name, chunk_size_feed_forward=0)"),
        )


def refuse_hidden_patches(network: Any) -> None:
    """Raise for a network that hides random patches of an image, so that two runs have other points (ViT-MAE)."""
    has_noise = "noise" in inspect.signature(base_network(network).forward).parameters
    if has_noise and not _is_repeatable(network):
        raise RheoscopeError(
            Message(
                "{network} hides random patches (noise, mask_ratio), so two runs on the same image differ, expected the same points",
                network=type(network).__name__,
            )
        )


@torch.no_grad()
def _is_repeatable(network: Any) -> bool:
    base, features = base_network(network), {main_input(network): random_features(network)}
    with eval_mode(base):
        return torch.equal(base(**features)[0], base(**features)[0])


def refuse_other_mask(network: Any) -> None:
    """Raise for a network that runs its base model with another mask than the base model has by itself (BLIP's text decoder)."""
    base = network.base_model
    own, inner = (inspect.signature(x.forward).parameters.get("is_decoder") for x in (network, base))
    if own is not None and inner is not None and own.default != inner.default:
        raise RheoscopeError(
            Message(
                "{network} runs {base} with is_decoder={own}, but {base} alone has is_decoder={inner}, so logits and points have different "
                "masks; open the base model",
                network=type(network).__name__,
                base=type(base).__name__,
                own=str(own.default),
                inner=str(inner.default),
            ),
            Advice("rs.load(network.base_model)"),
        )


@contextmanager
def refuse_undescribed(network: Any) -> Iterator[None]:
    """Turn any other error of a description into one line. A network may differ from its type in any way."""
    try:
        yield
    except RheoscopeError:
        raise
    except Exception as error:
        raise RheoscopeError(
            Message(
                "{network} differs from other models of type {model_type!r} and cannot be described ({error}: {reason})",
                network=type(network).__name__,
                model_type=getattr(getattr(network, "config", None), "model_type", ""),
                error=type(error).__name__,
                reason=(str(error).splitlines() or [""])[0],
            )
        ) from error
