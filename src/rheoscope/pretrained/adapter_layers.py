"""Layers of peft inside a network: which modules they are, which adapters act in them, and their removal from a copy."""

import sys
from collections.abc import Iterator
from typing import Any

from torch import nn


def _peft_classes(module: str, name: str) -> tuple[type, ...]:
    """A class of peft, or nothing before peft is imported: then no network has its layers."""
    loaded_module = sys.modules.get(module)
    return () if loaded_module is None else (getattr(loaded_module, name),)


def is_adapter_layer(module: Any) -> bool:
    """Whether a module is a projection or an embedding that peft has wrapped to edit its weight."""
    return isinstance(module, _peft_classes("peft.tuners.tuners_utils", "BaseTunerLayer"))


def is_replaced_module(module: Any) -> bool:
    """Whether a module is a wrapper that runs a retrained copy of a module (`modules_to_save`)."""
    return isinstance(module, _peft_classes("peft.utils.other", "AuxiliaryTrainingWrapper"))


def wrapped_module(module: Any) -> Any:
    """The module that a wrapper of retrained copies runs, and any other module itself."""
    if not is_replaced_module(module):
        return module
    if module.disable_adapters or not module.active_adapters:
        return module.original_module
    copies = getattr(module, "modules_to_save", None)
    return (
        getattr(module, "token_adapter", module.original_module)
        if copies is None
        else copies[module.active_adapters[0]]
    )


def stored_module(module: Any) -> Any:
    """The module of the base model inside all layers of peft.

    >>> linear = nn.Linear(2, 2)
    >>> stored_module(linear) is linear
    True
    """
    module = wrapped_module(module)
    return module.get_base_layer() if is_adapter_layer(module) else module


def adapter_layers(network: nn.Module) -> Iterator[tuple[str, Any]]:
    """Every layer of peft in a network, with its name."""
    if "peft" not in sys.modules:
        return
    for name, module in network.named_modules():
        if is_adapter_layer(module) or is_replaced_module(module):
            yield name, module


def active_names(layer: Any) -> list[str]:
    """The adapters that act in a layer, in order. Merged ones are part of its stored weight."""
    if layer.disable_adapters or layer.merged_adapters:
        return []
    available = layer._get_available_adapters()
    return [name for name in layer.active_adapters if name in available]


def adapter_names(network: nn.Module) -> list[str]:
    """The names of the adapters that act in a network, merged ones included."""
    return sorted(
        {name for _, layer in adapter_layers(network) for name in [*layer.merged_adapters, *active_names(layer)]}
    )


def adapter_state(network: nn.Module) -> str:
    """Everything about the adapters of a network that changes its outputs and is not a weight. Empty without adapters.

    >>> adapter_state(nn.Linear(2, 2))
    ''
    """
    state = [
        (name, sorted(layer.merged_adapters), [(x, getattr(layer, "scaling", {}).get(x)) for x in active_names(layer)])
        for name, layer in adapter_layers(network)
    ]
    return repr(state) if state else ""


def adapter_settings(layers: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The switches of layers of peft as they are now. They are compared at every call, so this takes microseconds per layer."""
    return [
        (
            layer._disable_adapters,
            tuple(layer.merged_adapters),
            layer._active_adapter if type(layer._active_adapter) is str else tuple(layer._active_adapter),
            tuple(vars(layer).get("scaling", {}).values()),
        )
        for layer in layers
    ]
