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

from rheoscope.running.loading_stages import Progress, stage
from rheoscope.running.weight_files import check_safetensors, device_of, dtype_of, placed
from rheoscope.shapes import RheoscopeError

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)
AUTO = "auto"
"""The device of a model that is laid over all GPUs."""
TABLES = ("inv_freq",)
"""Buffers that keep their dtype, as `from_pretrained` keeps it: rotary frequencies."""


def opened(
    source: str | Path,
    device: str | None,
    dtype: str | None,
    revision: str | None,
    drawn: int | None,
    progress: Progress | None = None,
) -> tuple[Any, Any, tuple[str, ...]]:
    """The network, its tokenizer (None where there is none) and the weights it is read without (see `fitted`).

    `drawn`, a seed, gives the architecture at initial weights: then no file with weights is looked for.
    """
    _need_transformers()
    with quiet(), counting(stage(progress, 0, 100)):
        return _opened(source, device, dtype, revision, drawn)


@contextmanager
def quiet() -> Iterator[None]:
    """What matters comes back as a result or as one line; the chatter of the libraries below does not."""
    import huggingface_hub.utils.logging as hub
    from transformers.utils import logging

    levels, bars = (logging.get_verbosity(), hub.get_verbosity()), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    hub.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(levels[0])
        hub.set_verbosity(levels[1])
        if bars:
            logging.enable_progress_bar()


@contextmanager
def counting(progress: Progress) -> Iterator[None]:
    """While transformers reads weights, tell how many it has; it lets others count since 5.4."""
    from transformers.utils import logging

    if not hasattr(logging, "set_tqdm_hook"):
        yield
        return

    def hook(bar: Any, args: Any, kw: Any) -> Any:
        held = args[0] if args else kw.get("iterable")
        return bar(*args, **kw) if held is None else _counted(held, progress)

    before = logging.set_tqdm_hook(hook)
    try:
        yield
    finally:
        logging.set_tqdm_hook(before)


def _counted(held: Collection[Any], progress: Progress) -> Iterator[Any]:
    for done, one in enumerate(held, 1):
        yield one
        progress(done, len(held))


def _opened(
    source: str | Path, device: str | None, dtype: str | None, revision: str | None, drawn: int | None
) -> tuple[Any, Any, tuple[str, ...]]:
    from transformers import AutoConfig

    directory = Path(source)
    if directory.exists():
        _check_directory(directory, weights=drawn is None)
    elif directory.is_absolute() or str(source).startswith((".", "~")) or str(source).count("/") > 1:
        raise RheoscopeError(
            f"there is no directory {source}; type one that holds config.json and *.safetensors, or a hub name"
        )
    here = directory.exists() or not _hub_answers()
    try:
        config = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False, local_files_only=here)
    except Exception as error:  # a config that is wrong raises whatever its first reader stumbles over
        raise _told(source, error) from error
    if getattr(config, "quantization_config", None) is not None:
        raise RheoscopeError(
            f"{source} is quantised; M and F need the weights themselves: type the name of the unquantised model"
        )
    network, ignored = _network(source, config, device, dtype, revision, drawn, here)
    return network, _tokenizer(source, revision, here), ignored


def _hub_answers() -> bool:
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


def _network(
    source: str | Path,
    config: Any,
    device: str | None,
    dtype: str | None,
    revision: str | None,
    drawn: int | None,
    here: bool,
) -> tuple[Any, tuple[str, ...]]:
    from rheoscope.pretrained.checkpoint_fit import fitted
    from rheoscope.pretrained.families import family_of

    family_of(config)
    kind = model_class(config)
    spread = device == AUTO
    wanted, place = dtype_of(dtype, device), device_of("cpu" if spread else device or "cpu")
    if drawn is not None:
        wanted = (getattr(config, "dtype", None) or torch.float32) if wanted == "auto" else wanted
        return placed(initial(kind, config, drawn), place, wanted, TABLES).eval(), ()
    try:
        with torch.random.fork_rng(devices=[]):  # what is missing is drawn at random, before it is refused or ignored
            network, info = kind.from_pretrained(
                source, config=config, dtype=wanted, revision=revision, use_safetensors=True, trust_remote_code=False,
                output_loading_info=True, ignore_mismatched_sizes=True, local_files_only=here, **_spread(spread),
            )  # fmt: skip
    except Exception as error:
        raise _told(source, error) from error
    network, ignored = fitted(source, network.eval(), info)
    _check_whole(network)
    return network if spread else network.to(place), ignored


def _spread(wanted: bool) -> dict[str, Any]:
    """How a model is laid over all GPUs, layer by layer."""
    if not wanted:
        return {}
    if find_spec("accelerate") is None:
        raise RheoscopeError(
            "device='auto' lays a model over all GPUs by accelerate, which is not here; type pip install accelerate"
        )
    return {"device_map": "auto"}


def _check_whole(network: Any) -> None:
    """Refuse weights that are not on a device as a whole: M and F are made of them."""
    from torch.distributed.tensor import DTensor

    if any(isinstance(weight, DTensor) for weight in network.parameters()):
        raise RheoscopeError(
            "this model is cut by tensor parallelism (tp_plan), and no process has the weights of a head as a whole; "
            "type device='auto' to lay whole layers over the GPUs"
        )
    places = {str(place) for place in getattr(network, "hf_device_map", {}).values()}
    if "disk" in places or ("cpu" in places and len(places) > 1):
        raise RheoscopeError(
            "parts of this model fit on no GPU, and their weights are on the disk or the CPU; type device='cpu', or use more GPUs"
        )


def taken(network: Any, device: str | None, dtype: str | None, drawn: int | None) -> Any:
    """A network that is already built, where and how it is wanted, or the same architecture at its initial weights."""
    config, weight = getattr(network, "config", None), next(network.parameters(), None)
    if weight is None or not hasattr(config, "model_type"):
        raise RheoscopeError(
            f"load takes a transformers model, got {type(network).__name__}; type the one that from_pretrained gave"
        )
    _check_whole(network)
    several = len({one.device for one in network.parameters()}) > 1
    if several and (device, dtype, drawn) == (None, None, None):
        return network.eval()  # whoever laid it over several devices knows why
    place = weight.device if device is None else device_of(device)
    wanted = weight.dtype if dtype is None else dtype_of(dtype, device)
    return placed(network if drawn is None else initial(type(network), config, drawn), place, wanted, TABLES).eval()


def initial(kind: Any, config: Any, seed: int = 0) -> Any:
    """The same architecture at the initial weights of its family, the same ones for a seed: the control of every claim."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return kind(copy.deepcopy(config))


def model_class(config: Any) -> Any:
    """The class with an unembedding where the checkpoint has one, the bare encoder otherwise."""
    import transformers

    names = getattr(config, "architectures", None) or []
    for name in names:
        if hasattr(transformers, name):
            return getattr(transformers, name)
    encoder = type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING
    return (transformers.MODEL_MAPPING if encoder else transformers.MODEL_FOR_CAUSAL_LM_MAPPING)[type(config)]


def _tokenizer(source: str | Path, revision: str | None, here: bool) -> Any:
    from transformers import AutoTokenizer

    directory = Path(source)
    if directory.exists() and not any((directory / name).exists() for name in TOKENIZER_FILES):
        return None  # transformers would make an empty one
    try:
        return AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False, local_files_only=here)
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


def _check_directory(directory: Path, weights: bool) -> None:
    if not (directory / "config.json").is_file():
        raise RheoscopeError(f"{directory} holds no config.json; type the directory that a model was saved to")
    if not weights:
        return
    if list(directory.glob("*.safetensors")):
        for file in directory.glob("*.safetensors"):
            check_safetensors(file)
        return
    pickled = [*directory.glob("*.bin"), *directory.glob("*.pt"), *directory.glob("*.pth")]
    if pickled:
        kind = (_json(directory / "config.json").get("architectures") or ["AutoModel"])[0]
        raise RheoscopeError(
            f"{directory} holds {pickled[0].name}, a pickle that can run code, and no safetensors; convert it once: "
            f"python -c \"from transformers import {kind} as M; M.from_pretrained('{directory}').save_pretrained('{directory}')\""
        )
    raise RheoscopeError(f"{directory} holds no *.safetensors; type the directory that a model was saved to")


def _json(file: Path) -> dict[str, Any]:
    """What a JSON file holds; nothing where it cannot be read (transformers says why, later)."""
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _need_transformers() -> None:
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise RheoscopeError(
            "loading a pretrained model needs transformers; type pip install 'transformers>=5'"
        ) from error


def _told(source: str | Path, error: Exception) -> RheoscopeError:
    """What transformers says, in one line, with what to type."""
    said = textwrap.shorten(f"{type(error).__name__}: {error}", 300, placeholder=" …")
    text = str(error).lower()
    if "does not recognize this architecture" in text or "custom code" in text:
        return RheoscopeError(
            f"{source} has a model type that transformers does not know, and code that comes with a model is never run; "
            "type a model of a family that transformers has"
        )
    if Path(source).exists():
        return RheoscopeError(f"cannot load {source} ({said}); check its config.json, or get it again")
    if "gated" in text or "401" in text or "403" in text:
        return RheoscopeError(f"{source} is gated: accept its licence on its page and type `hf auth login`")
    if "couldn't connect" in text or "connection" in text or "offline" in text or "not a local folder" in text:
        return RheoscopeError(
            f"{source} is neither a directory here nor in the cache, and no hub can be reached; type a directory, or go online once"
        )
    if "safetensors" in text and "no file" in text:
        return RheoscopeError(
            f"{source} has no safetensors weights; convert them once with transformers' save_pretrained"
        )
    return RheoscopeError(f"cannot load {source} ({said}); type another name, or a directory")
