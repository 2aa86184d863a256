"""From a source to a network: a hub name, a directory, a GGUF file or a model object, with the chosen adapters."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.pretrained.adapter_layers import adapter_names
from rheoscope.pretrained.adapters import Adapter, attach_adapter, base_network, resolve_adapter, with_adapter
from rheoscope.pretrained.checkpoint import load_network, prepare_network
from rheoscope.pretrained.towers import only_tower
from rheoscope.running.loading_stages import Progress
from rheoscope.shapes import RheoscopeError


@dataclass(frozen=True)
class OpenNetwork:
    """A network with its tokenizer or None, its name, and the weights that were ignored.

    `facts` are added to those of the model: the base and the adapter, if a directory of an adapter was attached.
    """

    network: Any
    name: str
    tokenizer: Any = None
    ignored_weights: tuple[str, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)


def open_network(
    source: Any,
    adapter: Adapter,
    device: str | None,
    dtype: str | None,
    revision: str | None,
    init_seed: int | None,
    stream: bool | None,
    progress: Progress,
) -> OpenNetwork:
    """The network of a source. `init_seed` gives its architecture with initial weights. `stream` leaves the weights in their files."""
    if isinstance(source, nn.Module):
        network = prepare_network(with_adapter(base_network(source, adapter), adapter), device, dtype, init_seed)
        network = only_tower(network)
        base_name = getattr(network.config, "_name_or_path", "") or type(network).__name__
        return OpenNetwork(network, " + ".join([base_name, *adapter_names(network)]))
    if not isinstance(source, str | Path):
        raise RheoscopeError(
            Message("source must be a name, a directory or a model, got {received}", received=type(source).__name__),
            Advice("rs.load('gpt2')", "--model gpt2"),
        )
    base, directory = resolve_adapter(source, adapter, init_seed is not None)
    if stream and directory is not None:
        raise RheoscopeError(
            Message(
                "the adapter {adapter} needs its base model in memory, so the model cannot be streamed; merge the adapter and "
                "save the model to stream it",
                adapter=str(directory),
            ),
            use(stream=False),
        )
    reads_blocks = False if directory is not None or init_seed is not None else stream
    network, tokenizer, ignored = load_network(base, device, dtype, revision, init_seed, reads_blocks, progress)
    if directory is None:
        return OpenNetwork(network, str(base), tokenizer, ignored)
    adapted, facts = attach_adapter(network, directory), {"base": str(base), "adapter": str(directory)}
    return OpenNetwork(adapted, f"{base} + {directory}", tokenizer, ignored, facts)
