"""Adapters of peft: opening them on a base model, and choosing which of them act."""

import copy
import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.pretrained.adapter_layers import adapter_layers, is_replaced_module
from rheoscope.pretrained.library_errors import one_line
from rheoscope.pretrained.quantised_weights import copy_modules
from rheoscope.running.weight_files import check_safetensors
from rheoscope.shapes import RheoscopeError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The files of an adapter."""
PROMPT_KINDS = (
    "PREFIX_TUNING",
    "PROMPT_TUNING",
    "P_TUNING",
    "MULTITASK_PROMPT_TUNING",
    "CPT",
    "ADAPTION_PROMPT",
    "CARTRIDGE",
)
"""Kinds of adapters that add tokens or keys. They change no weight."""
ROUTED_KINDS = ("XLORA", "POLY")
"""Kinds of adapters whose edit depends on the token or the task."""
Adapter = str | Path | bool | None
"""The choice of adapters: a directory or a name, `False` for none, or `None` for those of the source."""


def resolve_adapter(
    source: str | Path, adapter: Adapter, is_untrained: bool = False
) -> tuple[str | Path, str | Path | None]:
    """The base model and the directory of the adapter on it, or None. An adapter directory is opened on the base that it names."""
    is_adapter = (Path(source) / CONFIG).is_file() and not (Path(source) / "config.json").is_file()
    base, default_adapter = (base_of_adapter(source), source) if is_adapter else (source, None)
    if adapter is True:
        raise _no_choice()
    if adapter and is_untrained:
        raise RheoscopeError(
            Message(
                "untrained=True gives initial weights, which adapter={received} does not fit", received=str(adapter)
            ),
            Advice("adapter=False"),
        )
    if adapter is False or is_untrained:
        return base, None
    return base, default_adapter if adapter is None else adapter_directory(adapter)


def adapter_directory(adapter: str | Path) -> str | Path:
    """The directory of an adapter. The files of a hub name are downloaded: its config and its safetensors."""
    if Path(adapter).exists() or Path(adapter).is_absolute() or str(adapter).count("/") != 1:
        return adapter
    from huggingface_hub import snapshot_download

    try:
        return snapshot_download(str(adapter), allow_patterns=[CONFIG, WEIGHTS])
    except Exception as error:  # the library raises many kinds
        raise RheoscopeError(
            Message(
                "{adapter} is neither a directory nor an adapter on the hub ({reason}); choose a directory with {file}",
                adapter=str(adapter),
                reason=one_line(error),
                file=CONFIG,
            )
        ) from error


def base_of_adapter(directory: str | Path) -> str:
    """The name or the directory of the base model, as the adapter's config states it."""
    base = read_config(directory).get("base_model_name_or_path")
    if not base:
        raise RheoscopeError(
            Message("the adapter {directory} does not name its base model", directory=str(directory)),
            Advice(f"rs.load('gpt2', adapter={str(directory)!r})", f"--model gpt2 --adapter {directory}"),
        )
    return str(base)


def read_config(directory: str | Path) -> dict[str, Any]:
    """The config of an adapter. Raises if the directory holds no adapter, or one that describes no edit of weights."""
    folder = Path(directory)
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = None
    if not isinstance(config, dict):
        raise RheoscopeError(
            Message(
                "{directory} contains no readable {file}; choose the directory that an adapter was saved to",
                directory=str(directory),
                file=CONFIG,
            )
        )
    check_kind(str(config.get("peft_type", "")), str(directory))
    if not (folder / WEIGHTS).is_file():
        raise RheoscopeError(
            Message(
                "{directory} contains no {file}; save the adapter with save_pretrained, which writes safetensors",
                directory=str(directory),
                file=WEIGHTS,
            )
        )
    check_safetensors(folder / WEIGHTS)
    return config


def check_kind(kind: str, name: str) -> None:
    """Raise for an adapter that is not an edit of weight matrices.

    >>> check_kind("LORA", "run")
    """
    if kind in PROMPT_KINDS:
        raise RheoscopeError(
            Message(
                "the adapter {name} is of kind {kind}, which adds tokens instead of editing weights, so M and F do not change; "
                "choose a LoRA adapter, or load the base model",
                name=name,
                kind=kind,
            ),
            Advice("adapter=False"),
        )
    if kind in ROUTED_KINDS:
        raise RheoscopeError(
            Message(
                "the adapter {name} is of kind {kind}, whose edit depends on the token, so it has no M and F; choose a LoRA adapter",
                name=name,
                kind=kind,
            )
        )


def base_network(network: Any, adapter: Adapter = None) -> Any:
    """The network inside a `PeftModel`, with its adapters in place. Any other network is returned itself.

    Adapters that edit no weights are refused, except those that `adapter=False` leaves out.
    """
    peft = sys.modules.get("peft")
    is_wrapper = peft is not None and isinstance(network, peft.PeftModel | peft.PeftMixedModel)
    for name, config in (getattr(network, "peft_config", None) or {}).items():
        if not (adapter is False and config.is_prompt_learning):
            check_kind(str(getattr(config.peft_type, "value", config.peft_type)), name)
    return network.get_base_model() if is_wrapper else network


def with_adapter(network: nn.Module, adapter: Adapter) -> Any:
    """The network with the chosen adapters. Another choice than the network's own is a copy that shares all weights with it."""
    if adapter is None:
        return network
    if adapter is True:
        raise _no_choice()
    names = _adapter_names(network)
    if adapter is False:
        return _without_adapters(copy_modules(network)) if names else network
    if str(adapter) in names:
        return _with_active(copy_modules(network), str(adapter))
    if names and not Path(adapter).is_dir():
        raise RheoscopeError(
            Message(
                "the model has no adapter {received!r} and there is no such directory; its adapters are {names}",
                received=str(adapter),
                names=", ".join(sorted(names)),
            ),
            use(adapter=min(names)),
        )
    directory = adapter_directory(adapter)
    copied = copy.deepcopy(network) if _rewrites_base(directory) else copy_modules(network)
    with _same_trained_weights(network):
        return attach_adapter(_without_adapters(copied), directory)


def _rewrites_base(directory: str | Path) -> bool:
    """Whether an adapter was initialised from its base weights (PiSSA, OLoRA, …). Opening it subtracts a part of them."""
    return isinstance(read_config(directory).get("init_lora_weights"), str)


def _no_choice() -> RheoscopeError:
    return RheoscopeError(Message("adapter must be a directory, a name or False, got True"), Advice("adapter=False"))


def attach_adapter(network: Any, directory: str | Path) -> Any:
    """The network with the adapter of a directory in its layers. The network is changed."""
    read_config(directory)
    peft = _import_peft()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a key without a place is an error below
            adapted = peft.PeftModel.from_pretrained(network, str(directory)).eval()
    except Exception as error:  # peft raises many kinds
        raise _misfit(directory, network, one_line(error)) from error
    _check_keys(peft, adapted, Path(directory), network)
    return adapted.get_base_model()


def _check_keys(peft: Any, adapted: Any, directory: Path, network: Any) -> None:
    """Raise unless every weight of the file has a place in the network and every place has a weight. peft only warns."""
    from safetensors import safe_open

    with safe_open(directory / WEIGHTS, framework="pt") as file:
        stored_names = set(file.keys())
    expected_names = set(peft.get_peft_model_state_dict(adapted))
    difference = sorted(stored_names ^ expected_names)
    if difference:
        problem = "no place for" if difference[0] in stored_names else "no weight for"
        raise _misfit(directory, network, f"{problem} {difference[0].removeprefix('base_model.model.')}")


def _misfit(directory: str | Path, network: Any, reason: str) -> RheoscopeError:
    return RheoscopeError(
        Message(
            "the adapter {directory} does not fit {network} ({reason}); it was trained on {base}",
            directory=str(directory),
            network=type(network).__name__,
            reason=reason,
            base=str(read_config(directory).get("base_model_name_or_path") or "another model"),
        )
    )


def _import_peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise RheoscopeError(Message("opening an adapter needs peft"), Advice("", "pip install peft")) from error
    return peft


def _adapter_names(network: nn.Module) -> set[str]:
    """The names of all adapters in a network."""
    names: set[str] = set()
    for _, layer in adapter_layers(network):
        names |= set(layer._get_available_adapters()) | set(layer.merged_adapters)
    return names


def _without_adapters(network: Any) -> Any:
    """The base model: every layer of peft is replaced by the layer that it wraps. Merged adapters are subtracted from a copy."""
    for name, layer in list(adapter_layers(network)):
        if not _has_module(network, name):
            continue  # it was inside a layer that has been replaced
        parent_name, _, child_name = name.rpartition(".")
        setattr(network.get_submodule(parent_name), child_name, _base_layer(layer))
    return network


def _has_module(network: nn.Module, name: str) -> bool:
    """Whether a module is still there after modules around it were replaced."""
    try:
        network.get_submodule(name)
    except AttributeError:
        return False
    return True


def _base_layer(layer: Any) -> Any:
    if is_replaced_module(layer):
        return layer.original_module
    base_layer = layer.get_base_layer()
    if layer.merged_adapters:
        for name, x in list(base_layer.named_parameters(recurse=False)):
            setattr(base_layer, name, nn.Parameter(x.detach().clone(), requires_grad=x.requires_grad))
        layer.merged_adapters = list(layer.merged_adapters)
        layer.unmerge()
    return base_layer


def _with_active(network: Any, name: str) -> Any:
    """The network with one of its adapters. Which of its weights are trained does not change."""
    with _same_trained_weights(network):
        for _, layer in adapter_layers(network):
            layer.set_adapter([name])
            layer._disable_adapters = False
    return network


@contextmanager
def _same_trained_weights(network: nn.Module) -> Iterator[None]:
    """Restore afterwards which weights are trained. peft freezes and unfreezes weights, which the caller shares."""
    trained = {x: x.requires_grad for x in network.parameters()}
    try:
        yield
    finally:
        for x, requires_grad in trained.items():
            x.requires_grad_(requires_grad)
