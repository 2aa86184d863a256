"""Getting a model from a hub name, a directory or an object: safetensors only, nothing half-loaded, one line when it fails."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from rheoscope.shapes import RheoscopeError

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)


def opened(
    source: str | Path, device: str | None, dtype: str | None, revision: str | None, untrained: bool
) -> tuple[Any, Any]:
    """The network and its tokenizer (None where there is none) from a directory or a hub name."""
    _need_transformers()
    with quiet():
        return _opened(source, device, dtype, revision, untrained)


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


def _opened(
    source: str | Path, device: str | None, dtype: str | None, revision: str | None, untrained: bool
) -> tuple[Any, Any]:
    from transformers import AutoConfig

    directory = Path(source)
    if directory.exists():
        _check_directory(directory)
    try:
        config = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise _told(source, error) from error
    if getattr(config, "quantization_config", None) is not None:
        raise RheoscopeError(
            f"{source} is quantised; M and F need the weights themselves: type the name of the unquantised model"
        )
    network = _network(source, config, device, dtype, revision, untrained)
    return network, _tokenizer(source, revision)


def _network(
    source: str | Path, config: Any, device: str | None, dtype: str | None, revision: str | None, untrained: bool
) -> Any:
    from rheoscope.pretrained.families import family_of

    family_of(config)
    kind = model_class(config)
    wanted = _dtype(dtype, device)
    if untrained:
        return initial(kind, config).to(device or "cpu", dtype=None if wanted == "auto" else wanted).eval()
    try:
        network, info = kind.from_pretrained(
            source, config=config, dtype=wanted, revision=revision, use_safetensors=True, trust_remote_code=False,
            output_loading_info=True,
        )  # fmt: skip
    except Exception as error:
        raise _told(source, error) from error
    missing = [name for name in info["missing_keys"] if not name.endswith(".position_ids")]
    if missing or info.get("mismatched_keys"):
        what = ", ".join([*map(str, missing), *map(str, info.get("mismatched_keys", []))][:3])
        raise RheoscopeError(
            f"the weights of {source} do not fit its config (missing or of another shape: {what}, …); get it again"
        )
    return network.to(device or "cpu").eval()


def initial(kind: Any, config: Any) -> Any:
    """The same architecture at its initial weights, always the same ones: the control that every claim needs."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind(config)


def model_class(config: Any) -> Any:
    """The class with an unembedding where the checkpoint has one, the bare encoder otherwise."""
    import transformers

    names = getattr(config, "architectures", None) or []
    for name in names:
        if hasattr(transformers, name):
            return getattr(transformers, name)
    return transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config)) or transformers.MODEL_MAPPING[type(config)]


def check_weights(network: Any) -> None:
    """Refuse weights that are not numbers, by name."""
    for name, x in network.named_parameters():
        if x.is_floating_point() and not bool(x.sum().isfinite()) and not bool(x.isfinite().all()):
            raise RheoscopeError(f"the weight {name} holds NaN or infinity; the checkpoint is broken: get it again")


def fingerprint(network: Any) -> str:
    """A hash of every weight (BLAKE2b, 16 hex digits): two models with the same one are the same model."""
    digest = hashlib.blake2b(digest_size=8)
    for name, x in sorted(network.state_dict().items()):
        digest.update(f"{name}{tuple(x.shape)}{x.dtype}".encode())
        digest.update(x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _tokenizer(source: str | Path, revision: str | None) -> Any:
    from transformers import AutoTokenizer

    directory = Path(source)
    if directory.exists() and not any((directory / name).exists() for name in TOKENIZER_FILES):
        return None  # transformers would make an empty one
    try:
        return AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _dtype(dtype: str | None, device: str | None) -> Any:
    """float32 on the CPU, the checkpoint's own on CUDA, or the one asked for."""
    if dtype is None:
        return torch.float32 if device in (None, "cpu") else "auto"
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
    if dtype not in known:
        raise RheoscopeError(f"unknown dtype {dtype!r}; type one of {', '.join(known)}")
    return known[dtype]


def _check_directory(directory: Path) -> None:
    if not (directory / "config.json").is_file():
        raise RheoscopeError(f"{directory} holds no config.json; type the directory that a model was saved to")
    if list(directory.glob("*.safetensors")):
        for file in directory.glob("*.safetensors"):
            _check_safetensors(file)
        return
    pickled = [*directory.glob("*.bin"), *directory.glob("*.pt"), *directory.glob("*.pth")]
    if pickled:
        raise RheoscopeError(
            f"{directory} holds {pickled[0].name}, a pickle that can run code, and no safetensors; convert it once: "
            f"python -c \"from transformers import AutoModel; AutoModel.from_pretrained('{directory}').save_pretrained('{directory}')\""
        )
    raise RheoscopeError(f"{directory} holds no *.safetensors; type the directory that a model was saved to")


def _check_safetensors(file: Path) -> None:
    """Header and length, without reading the tensors: a truncated file is refused before anything is built."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened_file:
            opened_file.keys()
    except (SafetensorError, OSError) as error:
        raise RheoscopeError(f"{file} is truncated or corrupt ({error}); get it again") from error


def _need_transformers() -> None:
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise RheoscopeError(
            "loading a pretrained model needs transformers; type pip install 'transformers>=5'"
        ) from error


def _told(source: str | Path, error: Exception) -> RheoscopeError:
    """What transformers says, in one line, with what to type."""
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    text = str(error).lower()
    if "gated" in text or "401" in text or "403" in text:
        return RheoscopeError(f"{source} is gated: accept its licence on its page and type `hf auth login`")
    if "couldn't connect" in text or "connection" in text or "offline" in text or "not a local folder" in text:
        return RheoscopeError(
            f"{source} is neither a directory here nor in the cache, and no hub can be reached; type a directory, or go online once"
        )
    if "size mismatch" in text or "mismatch" in text:
        return RheoscopeError(f"the weights of {source} do not fit its config: {said}; get it again")
    if "safetensors" in text and "no file" in text:
        return RheoscopeError(
            f"{source} has no safetensors weights; convert them once with transformers' save_pretrained"
        )
    return RheoscopeError(f"cannot load {source}: {said}")
