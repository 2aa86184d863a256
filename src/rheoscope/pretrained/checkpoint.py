"""Getting a model from a hub name, a directory or an object: safetensors only, nothing half-loaded, one line when it fails."""

import copy
import json
import socket
import textwrap
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch

from rheoscope.running.loading_stages import Progress, progress_stage
from rheoscope.running.weight_files import check_safetensors, move_network, parse_device, parse_dtype
from rheoscope.shapes import RheoscopeError

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)
AUTO_DEVICE = "auto"
"""The device of a model that is laid over all GPUs."""
FIXED_DTYPE_BUFFERS = ("inv_freq",)
"""Buffers that keep their dtype, as `from_pretrained` keeps it: rotary frequencies."""


def load_network(
    source: str | Path,
    device: str | None,
    dtype: str | None,
    revision: str | None,
    init_seed: int | None,
    progress: Progress | None = None,
) -> tuple[Any, Any, tuple[str, ...]]:
    """The network, its tokenizer (None where there is none) and the weights it is read without (see `fitted`).

    `drawn`, a seed, gives the architecture at initial weights: then no file with weights is looked for.
    """
    _require_transformers()
    with silence_libraries(), report_loading(progress_stage(progress, 0, 100)):
        return _load_network(source, device, dtype, revision, init_seed)


@contextmanager
def silence_libraries() -> Iterator[None]:
    """What matters comes back as a result or as one line; the chatter of the libraries below does not."""
    import huggingface_hub.utils.logging as hub
    from transformers.utils import logging

    verbosity, bars_enabled = (logging.get_verbosity(), hub.get_verbosity()), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    hub.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity[0])
        hub.set_verbosity(verbosity[1])
        if bars_enabled:
            logging.enable_progress_bar()


@contextmanager
def report_loading(progress: Progress) -> Iterator[None]:
    """While transformers reads weights, tell how many it has; it lets others count since 5.4."""
    from transformers.utils import logging

    if not hasattr(logging, "set_tqdm_hook"):
        yield
        return

    def hook(make_bar: Any, args: Any, keywords: Any) -> Any:
        items = args[0] if args else keywords.get("iterable")
        return make_bar(*args, **keywords) if items is None else _count_items(items, progress)

    previous_hook = logging.set_tqdm_hook(hook)
    try:
        yield
    finally:
        logging.set_tqdm_hook(previous_hook)


def _count_items(items: Collection[Any], progress: Progress) -> Iterator[Any]:
    for n_done, item in enumerate(items, 1):
        yield item
        progress(n_done, len(items))


def _load_network(
    source: str | Path, device: str | None, dtype: str | None, revision: str | None, init_seed: int | None
) -> tuple[Any, Any, tuple[str, ...]]:
    from transformers import AutoConfig

    directory = Path(source)
    if directory.exists():
        _check_directory(directory, needs_weights=init_seed is None)
    elif directory.is_absolute() or str(source).startswith((".", "~")) or str(source).count("/") > 1:
        raise RheoscopeError(
            f"there is no directory {source}; type one that holds config.json and *.safetensors, or a hub name"
        )
    local_only = directory.exists() or not _is_hub_reachable()
    try:
        config = AutoConfig.from_pretrained(
            source, revision=revision, trust_remote_code=False, local_files_only=local_only
        )
    except Exception as error:  # a config that is wrong raises whatever its first reader stumbles over
        raise _load_error(source, error) from error
    if getattr(config, "quantization_config", None) is not None:
        raise RheoscopeError(
            f"{source} is quantised; M and F need the weights themselves: type the name of the unquantised model"
        )
    network, ignored = _load_weights(source, config, device, dtype, revision, init_seed, local_only)
    return network, _load_tokenizer(source, revision, local_only), ignored


def _is_hub_reachable() -> bool:
    """Can the hub be reached? Asked once, since its own client tries for half a minute before it gives up."""
    from huggingface_hub import constants

    if getproxies():
        return True  # a proxy looks names up in its own way
    address = urlsplit(constants.ENDPOINT)
    try:
        with socket.create_connection((address.hostname, address.port or 443), timeout=5):
            return True
    except OSError:
        return False


def _load_weights(
    source: str | Path,
    config: Any,
    device: str | None,
    dtype: str | None,
    revision: str | None,
    init_seed: int | None,
    local_only: bool,
) -> tuple[Any, tuple[str, ...]]:
    from rheoscope.pretrained.checkpoint_fit import match_weights
    from rheoscope.pretrained.families import family_of

    family_of(config)
    network_class = model_class(config)
    on_all_gpus = device == AUTO_DEVICE
    target_dtype, target_device = parse_dtype(dtype, device), parse_device("cpu" if on_all_gpus else device or "cpu")
    if init_seed is not None:
        target_dtype = (getattr(config, "dtype", None) or torch.float32) if target_dtype == "auto" else target_dtype
        return move_network(
            initial_network(network_class, config, init_seed), target_device, target_dtype, FIXED_DTYPE_BUFFERS
        ).eval(), ()
    try:
        with torch.random.fork_rng(devices=[]):  # what is missing is drawn at random, before it is refused or ignored
            network, loading_info = network_class.from_pretrained(
                source, config=config, dtype=target_dtype, revision=revision, use_safetensors=True, trust_remote_code=False,
                output_loading_info=True, ignore_mismatched_sizes=True, local_files_only=local_only, **_device_map_options(on_all_gpus),
            )  # fmt: skip
    except Exception as error:
        raise _load_error(source, error) from error
    network, ignored = match_weights(source, network.eval(), loading_info)
    _check_unsharded(network)
    return network if on_all_gpus else network.to(target_device), ignored


def _device_map_options(on_all_gpus: bool) -> dict[str, Any]:
    """How a model is laid over all GPUs, layer by layer."""
    if not on_all_gpus:
        return {}
    if find_spec("accelerate") is None:
        raise RheoscopeError(
            "device='auto' lays a model over all GPUs by accelerate, which is not here; type pip install accelerate"
        )
    return {"device_map": "auto"}


def _check_unsharded(network: Any) -> None:
    """Refuse weights that are not on a device as a whole: M and F are made of them."""
    from torch.distributed.tensor import DTensor

    if any(isinstance(weight, DTensor) for weight in network.parameters()):
        raise RheoscopeError(
            "this model is cut by tensor parallelism (tp_plan), and no process has the weights of a head as a whole; "
            "type device='auto' to lay whole layers over the GPUs"
        )
    devices = {str(device) for device in getattr(network, "hf_device_map", {}).values()}
    if "disk" in devices or ("cpu" in devices and len(devices) > 1):
        raise RheoscopeError(
            "parts of this model fit on no GPU, and their weights are on the disk or the CPU; type device='cpu', or use more GPUs"
        )


def prepare_network(network: Any, device: str | None, dtype: str | None, init_seed: int | None) -> Any:
    """A network that is already built, where and how it is wanted, or the same architecture at its initial weights."""
    config, weight = getattr(network, "config", None), next(network.parameters(), None)
    if weight is None or not hasattr(config, "model_type"):
        raise RheoscopeError(
            f"load takes a transformers model, got {type(network).__name__}; type the one that from_pretrained gave"
        )
    _check_unsharded(network)
    on_several_devices = len({parameter.device for parameter in network.parameters()}) > 1
    if on_several_devices and (device, dtype, init_seed) == (None, None, None):
        return network.eval()  # whoever laid it over several devices knows why
    target_device = weight.device if device is None else parse_device(device)
    target_dtype = weight.dtype if dtype is None else parse_dtype(dtype, device)
    return move_network(
        network if init_seed is None else initial_network(type(network), config, init_seed),
        target_device,
        target_dtype,
        FIXED_DTYPE_BUFFERS,
    ).eval()


def initial_network(network_class: Any, config: Any, seed: int = 0) -> Any:
    """The same architecture at the initial weights of its family, the same ones for a seed: the control of every claim."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return network_class(copy.deepcopy(config))


def model_class(config: Any) -> Any:
    """The class with an unembedding where the checkpoint has one, the bare encoder otherwise."""
    import transformers

    names = getattr(config, "architectures", None) or []
    for name in names:
        if hasattr(transformers, name):
            return getattr(transformers, name)
    is_encoder = type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING
    return (transformers.MODEL_MAPPING if is_encoder else transformers.MODEL_FOR_CAUSAL_LM_MAPPING)[type(config)]


def _load_tokenizer(source: str | Path, revision: str | None, local_only: bool) -> Any:
    from transformers import AutoTokenizer

    directory = Path(source)
    if directory.exists() and not any((directory / name).exists() for name in TOKENIZER_FILES):
        return None  # transformers would make an empty one
    try:
        return AutoTokenizer.from_pretrained(
            source, revision=revision, trust_remote_code=False, local_files_only=local_only
        )
    except Exception:  # the libraries raise what they like, Exception itself among it
        _check_tokenizer(directory / "tokenizer.json")
        return None  # a tokenizer that this installation cannot run: token ids will do


def _check_tokenizer(file: Path) -> None:
    """Refuse a tokenizer.json that is none; without the file, token ids are read."""
    from tokenizers import Tokenizer

    if not file.is_file():
        return
    try:
        Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises Exception itself
        raise RheoscopeError(
            f"{file} is no tokenizer.json ({error}); get it again, or remove it to read token ids"
        ) from error


def _check_directory(directory: Path, needs_weights: bool) -> None:
    if not (directory / "config.json").is_file():
        raise RheoscopeError(f"{directory} holds no config.json; type the directory that a model was saved to")
    if not needs_weights:
        return
    if list(directory.glob("*.safetensors")):
        for file in directory.glob("*.safetensors"):
            check_safetensors(file)
        return
    pickle_files = [*directory.glob("*.bin"), *directory.glob("*.pt"), *directory.glob("*.pth")]
    if pickle_files:
        class_name = (_read_json(directory / "config.json").get("architectures") or ["AutoModel"])[0]
        raise RheoscopeError(
            f"{directory} holds {pickle_files[0].name}, a pickle that can run code, and no safetensors; convert it once: "
            f"python -c \"from transformers import {class_name} as M; M.from_pretrained('{directory}').save_pretrained('{directory}')\""
        )
    raise RheoscopeError(f"{directory} holds no *.safetensors; type the directory that a model was saved to")


def _read_json(file: Path) -> dict[str, Any]:
    """What a JSON file holds; nothing where it cannot be read (transformers says why, later)."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _require_transformers() -> None:
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise RheoscopeError(
            "loading a pretrained model needs transformers; type pip install 'transformers>=5'"
        ) from error


def _load_error(source: str | Path, error: Exception) -> RheoscopeError:
    """What transformers says, in one line, with what to type."""
    summary = textwrap.shorten(f"{type(error).__name__}: {error}", 300, placeholder=" …")
    message = str(error).lower()
    if "does not recognize this architecture" in message or "custom code" in message:
        return RheoscopeError(
            f"{source} has a model type that transformers does not know, and code that comes with a model is never run; "
            "type a model of a family that transformers has"
        )
    if Path(source).exists():
        return RheoscopeError(f"cannot load {source} ({summary}); check its config.json, or get it again")
    if "gated" in message or "401" in message or "403" in message:
        return RheoscopeError(f"{source} is gated: accept its licence on its page and type `hf auth login`")
    if (
        "couldn't connect" in message
        or "connection" in message
        or "offline" in message
        or "not a local folder" in message
    ):
        return RheoscopeError(
            f"{source} is neither a directory here nor in the cache, and no hub can be reached; type a directory, or go online once"
        )
    if "safetensors" in message and "no file" in message:
        return RheoscopeError(
            f"{source} has no safetensors weights; convert them once with transformers' save_pretrained"
        )
    return RheoscopeError(f"cannot load {source} ({summary}); type another name, or a directory")
