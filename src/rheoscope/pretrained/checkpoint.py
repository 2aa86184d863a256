"""Loading a Hugging Face model from a hub name, a directory or an object: safetensors only, one-line errors."""

import copy
import json
import socket
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch

from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.pretrained.library_errors import config_error, plain_reason
from rheoscope.pretrained.network_inputs import is_pair, load_pair_processor, load_processor, reads_tokens
from rheoscope.pretrained.quantised_sources import locate_gguf, quantisation_error, refuse_conversion, require_gguf
from rheoscope.pretrained.streaming import check_shards
from rheoscope.pretrained.towers import select_tower, split_tower
from rheoscope.pretrained.unsupported_networks import check_supported
from rheoscope.running.loading_stages import Progress, progress_stage
from rheoscope.running.network_copy import copy_if_needed
from rheoscope.running.network_walk import parameters_of
from rheoscope.running.streamed_weights import stream_parameters
from rheoscope.running.weight_files import check_safetensors, move_network, parse_device, parse_dtype
from rheoscope.shapes import RheoscopeError
from rheoscope.space.seeded_draws import seeded_draws

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)
AUTO_DEVICE = "auto"
"""The device name that distributes a model over all GPUs."""
FIXED_DTYPE_BUFFERS = ("inv_freq",)
"""Buffers that keep their dtype, as in `from_pretrained`: rotary frequencies."""


def load_network(
    source: str | Path,
    device: str | None,
    dtype: str | None,
    revision: str | None,
    init_seed: int | None,
    stream: bool | None = False,
    progress: Progress | None = None,
) -> tuple[Any, Any, tuple[str, ...]]:
    """The network, its tokenizer (or None), and the weights that were ignored (see `match_weights`).

    `init_seed` gives the architecture with initial weights, and then no weight file is needed. `stream` leaves the weights in
    their files; None does so if they do not fit into memory.
    """
    _require_transformers()
    with silence_libraries(), report_loading(progress_stage(progress, 0, 100)):
        return _load_network(source, device, dtype, revision, init_seed, stream)


@contextmanager
def silence_libraries() -> Iterator[None]:
    """Silence the logging of the libraries below. What matters is returned or raised."""
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
    """Report how many weights transformers has read. It supports this since 5.4."""
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
    source: str | Path,
    device: str | None,
    dtype: str | None,
    revision: str | None,
    init_seed: int | None,
    stream: bool | None,
) -> tuple[Any, Any, tuple[str, ...]]:
    source, tower = split_tower(source)
    source, config, options = _read_config(source, revision, needs_weights=init_seed is None)
    network, ignored = _load_weights(source, config, device, dtype, options, init_seed, stream)
    network = select_tower(network, str(source), tower)
    if is_pair(network) and not reads_tokens(network):
        return network, load_pair_processor(source, options) or _load_tokenizer(source, options), ignored
    if not reads_tokens(network):
        return network, load_processor(source, options), ignored
    return network, _load_tokenizer(source, options), ignored


def read_config(source: str | Path, revision: str | None) -> Any:
    """The config of a hub name or of a directory, which needs no weights."""
    _require_transformers()
    with silence_libraries():
        return _read_config(split_tower(source)[0], revision, needs_weights=False)[1]


def _read_config(
    source: str | Path, revision: str | None, needs_weights: bool
) -> tuple[str | Path, Any, dict[str, Any]]:
    """The directory or hub name of a source, its config, and the options with which transformers reads its files."""
    from transformers import AutoConfig

    source, file_options = locate_gguf(source)
    directory = Path(source)
    if file_options:  # one file has config, weights and tokenizer
        require_gguf(file_options["gguf_file"])
    elif directory.exists():
        _check_directory(directory, needs_weights)
    elif directory.is_absolute() or str(source).startswith((".", "~")) or str(source).count("/") > 1:
        raise RheoscopeError(
            Message(
                "there is no directory {source}; choose one with config.json and *.safetensors, or a hub name",
                source=str(source),
            )
        )
    local_only = directory.exists() or not _is_hub_reachable()
    try:
        options = {"revision": revision, "trust_remote_code": False, "local_files_only": local_only, **file_options}
        config = AutoConfig.from_pretrained(source, **options)
    except Exception as error:  # an invalid config may raise anything
        raise _load_error(source, error) from error
    return source, config, options


def _is_hub_reachable() -> bool:
    """Whether the hub can be reached. Checked once, because its client retries for half a minute."""
    from huggingface_hub import constants

    if getproxies():
        return True  # a proxy resolves names itself
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
    options: dict[str, Any],
    init_seed: int | None,
    stream: bool | None,
) -> tuple[Any, tuple[str, ...]]:
    from rheoscope.pretrained.checkpoint_fit import match_weights
    from rheoscope.pretrained.families import family_of
    from rheoscope.pretrained.streaming import checkpoint_tensors, network_of_stored_weights

    family_of(config)
    network_class = model_class(config)
    on_all_gpus = device == AUTO_DEVICE
    target_dtype, target_device = parse_dtype(dtype, device), parse_device("cpu" if on_all_gpus else device or "cpu")
    if init_seed is not None:
        target_dtype = (getattr(config, "dtype", None) or torch.float32) if target_dtype == "auto" else target_dtype
        return move_network(
            initial_network(network_class, config, init_seed), target_device, target_dtype, FIXED_DTYPE_BUFFERS
        ).eval(), ()
    tensors = {} if on_all_gpus else checkpoint_tensors(source, config, options, target_dtype, target_device, stream)
    read_network = (
        partial(network_of_stored_weights, network_class, config, tensors, target_dtype)
        if tensors
        else partial(
            network_class.from_pretrained, source, config=config, dtype=target_dtype, use_safetensors=True,
            output_loading_info=True, ignore_mismatched_sizes=True, **options,
            **_device_map_options(on_all_gpus, target_device, config),
        )
    )  # fmt: skip
    try:
        with seeded_draws(0, cpu_only=True):  # missing weights are drawn at random before they are refused or ignored
            network, loading_info = read_network()
    except RheoscopeError:
        raise
    except Exception as error:
        raise quantisation_error(source, config, error) or _load_error(source, error) from error
    network, ignored = match_weights(source, network.eval(), loading_info)
    _check_unsharded(network)
    if tensors:
        network.config.name_or_path = str(source)
        stream_parameters(network, target_device, {tensor.file for tensor in tensors.values()})
        return network, ignored
    is_in_place = on_all_gpus or next(network.parameters()).device == target_device
    return network if is_in_place else network.to(target_device), ignored


def _device_map_options(on_all_gpus: bool, target_device: torch.device, config: Any) -> dict[str, Any]:
    """The options that distribute a model over all GPUs, layer by layer, or that put quantised weights on their device."""
    if not on_all_gpus:
        is_quantised = getattr(config, "quantization_config", None) is not None
        return {"device_map": {"": target_device}} if is_quantised and find_spec("accelerate") is not None else {}
    if find_spec("accelerate") is None:
        raise RheoscopeError(
            Message("device='auto' needs accelerate, which is not installed"), Advice("", "pip install accelerate")
        )
    return {"device_map": "auto"}


def _check_unsharded(network: Any) -> None:
    """Raise if weights are split or offloaded, because M and F need whole weights on a device."""
    from torch.distributed.tensor import DTensor

    if any(isinstance(weight, DTensor) for weight in parameters_of(network)):
        raise RheoscopeError(
            Message("this model is split by tensor parallelism (tp_plan), so no process has all weights of a head"),
            use(device="auto"),
        )
    devices = {str(device) for device in getattr(network, "hf_device_map", {}).values()}
    if "disk" in devices or ("cpu" in devices and len(devices) > 1):
        raise RheoscopeError(
            Message("parts of this model do not fit on the GPUs and are on the disk or the CPU; stream it"),
            Advice("rs.load(name, stream=True)", "--stream"),
        )


def prepare_network(network: Any, device: str | None, dtype: str | None, init_seed: int | None) -> Any:
    """The network itself, its copy on another device or in another dtype, or its architecture with initial weights."""
    config, weight = getattr(network, "config", None), next(network.parameters(), None)
    if weight is None or not hasattr(config, "model_type"):
        raise RheoscopeError(
            Message(
                "load expects a transformers model, got {received}; pass the one that from_pretrained returned",
                received=type(network).__name__,
            )
        )
    check_supported(network)
    _check_unsharded(network)
    on_several_devices = len({parameter.device for parameter in parameters_of(network)}) > 1
    if on_several_devices and (device, dtype, init_seed) == (None, None, None):
        return network  # the caller distributed it on purpose
    target_device = weight.device if device is None else parse_device(device)
    target_dtype = None if dtype is None else parse_dtype(dtype, device)
    if init_seed is None:
        refuse_conversion(network, target_device, target_dtype)
        return copy_if_needed(network, target_device, target_dtype, FIXED_DTYPE_BUFFERS)
    initial = initial_network(type(network), config, init_seed)
    return move_network(initial, target_device, target_dtype or weight.dtype, FIXED_DTYPE_BUFFERS).eval()


def initial_network(network_class: Any, config: Any, seed: int = 0) -> Any:
    """The architecture with the initial weights of its family, which depend only on the seed: the untrained control."""
    with seeded_draws(seed):
        return network_class(copy.deepcopy(config))


def model_class(config: Any) -> Any:
    """The class with an unembedding if the checkpoint has one, otherwise the bare encoder."""
    import transformers

    names = getattr(config, "architectures", None) or []
    for name in names:
        if hasattr(transformers, name):
            return getattr(transformers, name)
    has_causal = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    is_encoder = type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING
    mapping = transformers.MODEL_FOR_CAUSAL_LM_MAPPING if has_causal and not is_encoder else transformers.MODEL_MAPPING
    return mapping[type(config)]


def _load_tokenizer(source: str | Path, options: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer

    directory = Path(source)
    if (
        "gguf_file" not in options
        and directory.exists()
        and not any((directory / name).exists() for name in TOKENIZER_FILES)
    ):
        return None  # transformers would create an empty one
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "Recommended: pip install"
            )  # Marian, which reads almost all texts without sacremoses
            return AutoTokenizer.from_pretrained(source, **options)
    except Exception:  # the libraries may raise anything
        _check_tokenizer(directory / "tokenizer.json")
        return None  # this installation cannot run the tokenizer, but token ids still work


def _check_tokenizer(file: Path) -> None:
    """Raise for an invalid tokenizer.json. Without the file, only token ids are read."""
    from tokenizers import Tokenizer

    if not file.is_file():
        return
    try:
        Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise RheoscopeError(
            Message(
                "{file} is not a valid tokenizer.json ({reason}); download it again, or remove it to use token ids",
                file=str(file),
                reason=str(error),
            )
        ) from error


def _check_directory(directory: Path, needs_weights: bool) -> None:
    if not (directory / "config.json").is_file():
        raise RheoscopeError(
            Message(
                "{directory} contains no {file}; choose the directory that a model was saved to",
                directory=str(directory),
                file="config.json",
            )
        )
    if not needs_weights:
        return
    if list(directory.glob("*.safetensors")):
        check_shards(directory)
        for file in directory.glob("*.safetensors"):
            check_safetensors(file)
        return
    pickle_files = [*directory.glob("*.bin"), *directory.glob("*.pt"), *directory.glob("*.pth")]
    if pickle_files:
        class_name = (_read_json(directory / "config.json").get("architectures") or ["AutoModel"])[0]
        convert = f"from transformers import {class_name} as M; M.from_pretrained('{directory}').save_pretrained('{directory}')"
        raise RheoscopeError(
            Message(
                "{directory} contains {file}, a pickle that can run code, and no safetensors; convert it once",
                directory=str(directory),
                file=pickle_files[0].name,
            ),
            Advice(convert, f'python -c "{convert}"'),
        )
    raise RheoscopeError(
        Message(
            "{directory} contains no {file}; choose the directory that a model was saved to",
            directory=str(directory),
            file="*.safetensors",
        )
    )


def _read_json(file: Path) -> dict[str, Any]:
    """The content of a JSON file, or nothing if it cannot be read. transformers reports the reason later."""
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
            Message("loading a pretrained model needs transformers"), Advice("", "pip install 'transformers>=5'")
        ) from error


def _load_error(source: str | Path, error: Exception) -> RheoscopeError:
    """An error of transformers as one line with what to type."""
    message = str(error).lower()
    if "does not recognize this architecture" in message or "custom code" in message:
        return RheoscopeError(
            Message(
                "transformers does not know the model type of {source}, and code that comes with a model is never run; "
                "choose a model that transformers supports",
                source=str(source),
            )
        )
    if Path(source).exists():
        return config_error(Path(source) / "config.json") or RheoscopeError(
            Message(
                "cannot load {source} ({reason}); check its config.json or download it again",
                source=str(source),
                reason=plain_reason(error),
            )
        )
    if "gated" in message or "401" in message or "403" in message:
        return RheoscopeError(
            Message("{source} is gated; accept its licence on its page and log in", source=str(source)),
            Advice("", "hf auth login"),
        )
    if (
        "couldn't connect" in message
        or "connection" in message
        or "offline" in message
        or "not a local folder" in message
    ):
        return RheoscopeError(
            Message(
                "{source} is neither a directory nor in the cache, and the hub cannot be reached; choose a directory or go online once",
                source=str(source),
            )
        )
    if "safetensors" in message and "no file" in message:
        return RheoscopeError(
            Message(
                "{source} has no safetensors weights; convert them once with transformers' save_pretrained",
                source=str(source),
            )
        )
    return RheoscopeError(
        Message(
            "cannot load {source} ({reason}); choose another name or a directory",
            source=str(source),
            reason=plain_reason(error),
        )
    )
