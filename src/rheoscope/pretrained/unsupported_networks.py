"""Networks that cannot be described: each is refused in one line that says why and what to do."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
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


def refuse_packed_patches(network: Any) -> None:
    """Raise for a tower whose tokens are the patches of several images in one sequence (Qwen-VL)."""
    if "grid_thw" in inspect.signature(network.forward).parameters:
        raise RheoscopeError(
            Message(
                "{network} packs the patches of several images into one sequence (grid_thw, cu_seqlens), expected one image in each "
                "row of a batch; choose the model of texts",
                network=type(network).__name__,
            ),
            Advice("rs.load('NAME#text')", "--model 'NAME#text'"),
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
