"""The towers of a network that reads several kinds of input: each is a model, with a cloud of its own."""

from pathlib import Path
from typing import Any

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.pretrained.network_inputs import reads_tokens
from rheoscope.shapes import RheoscopeError

TOWER_MARK, CONFIG_SUFFIX = "#", "_config"
"""What stands between a model and its tower, and the end of the names of its configs in the config of the network."""


def split_tower(source: Any) -> tuple[Any, str | None]:
    """A source and the name of the tower that it ends with, or None. A directory may have the mark in its name.

    >>> split_tower("openai/clip-vit-base-patch32#vision")
    ('openai/clip-vit-base-patch32', 'vision')
    >>> split_tower("gpt2")
    ('gpt2', None)
    """
    if not isinstance(source, str | Path) or TOWER_MARK not in str(source) or Path(source).exists():
        return source, None
    name, _, tower = str(source).rpartition(TOWER_MARK)
    return type(source)(name), tower


def select_tower(network: Any, source: str, tower: str | None) -> Any:
    """The tower of this name, or what `only_tower` gives without a name. Raises if there is no such tower."""
    if tower is None:
        return only_tower(network, source)
    towers = find_towers(network)
    if tower in towers:
        return towers[tower]
    if not towers:
        raise RheoscopeError(
            Message("{network} has no towers, got {tower!r}", network=type(network).__name__, tower=tower),
            Advice(f"rs.load({source!r})", f"--model {source}"),
        )
    raise RheoscopeError(
        Message(
            "{network} has no tower {tower!r}, expected one of: {towers}",
            network=type(network).__name__,
            tower=tower,
            towers=", ".join(towers),
        ),
        _choices(source, towers),
    )


def only_tower(network: Any, source: str | None = None) -> Any:
    """The network itself, or its only tower if it reads no text.

    Raises if it has several towers and does not run on one input. `source` is its name or directory; without one, it is a built model.
    """
    towers = find_towers(network)
    if len(towers) == 1 and not reads_tokens(network):
        return next(iter(towers.values()))
    if len(towers) > 1 and hasattr(network, "get_text_features"):  # it compares texts with other inputs
        raise RheoscopeError(
            Message(
                "{network} has several towers, each with a cloud of its own: {towers}; choose one",
                network=type(network).__name__,
                towers=", ".join(towers),
            ),
            _attributes(network, towers) if source is None else _choices(source, towers),
        )
    return network


def find_towers(network: Any) -> dict[str, Any]:
    """Name → module: the outermost models inside a network whose configs are parts of its config, such as "vision" and "text".

    The text tower of a network with an unembedding is the network itself, which reads texts without images.
    """
    from transformers import PreTrainedModel

    parts = {
        name.removesuffix(CONFIG_SUFFIX): type(part)
        for name in sorted(getattr(network.config, "sub_configs", {}))
        if name.endswith(CONFIG_SUFFIX) and (part := getattr(network.config, name, None)) is not None
    }
    if not parts:
        return {}
    modules = [
        x for x in network.modules() if isinstance(x, PreTrainedModel) and type(x.config) is not type(network.config)
    ]
    module_of = {name: next((x for x in modules if type(x.config) is part), None) for name, part in parts.items()}
    towers = {name: module for name, module in module_of.items() if module is not None}
    if "text" in towers and reads_tokens(network) and not hasattr(network, "get_text_features"):
        towers["text"] = network
    return towers


def _choices(source: str, towers: dict[str, Any]) -> Advice:
    names = [f"{source}{TOWER_MARK}{tower}" for tower in towers]
    return Advice(" or ".join(f"rs.load({x!r})" for x in names), " or ".join(f"--model '{x}'" for x in names))


def _attributes(network: Any, towers: dict[str, Any]) -> Advice:
    paths = {module: path for path, module in network.named_modules()}
    return Advice(" or ".join(f"rs.load(network.{paths[module]})" for module in towers.values()))
