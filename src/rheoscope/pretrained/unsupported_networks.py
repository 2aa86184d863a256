"""Networks that cannot be described: each is refused in one line that says why and what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

ADAPTER_PACKAGE = "peft"
QUANTISED_MODULES = ("torch.ao.nn", "torchao", "bitsandbytes")
"""Packages whose modules hold quantised weights."""


def check_supported(network: nn.Module) -> None:
    """Raise for adapters, quantised weights, weights without values, and feed-forward layers that run in chunks."""
    packages = {type(module).__module__ for module in network.modules()}
    if any(package.split(".")[0] == ADAPTER_PACKAGE for package in packages):
        raise RheoscopeError(
            Message("{network} has adapters, which are not supported yet; merge them", network=type(network).__name__),
            Advice("rs.load(network.merge_and_unload())"),
        )
    integer_weights = [name for name, x in network.named_parameters() if not x.is_floating_point()]
    if integer_weights or any(package.startswith(QUANTISED_MODULES) for package in packages):
        raise RheoscopeError(
            Message(
                "{network} is quantised, but M and F need the original weights; load it without quantisation",
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
