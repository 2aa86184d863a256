"""Opening a checkpoint whose weights stay in their files: transformers builds the network from tensors that are read later."""

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.running.available_memory import StreamedModelWarning, available_bytes, fits
from rheoscope.running.stored_tensor import StoredTensor, deferring, stored_tensor
from rheoscope.running.streamed_weights import resident_bytes
from rheoscope.running.tensor_files import FileTensor, read_headers
from rheoscope.shapes import RheoscopeError

SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"


def weight_files(source: str | Path, revision: str | None, local_only: bool) -> list[Path]:
    """The safetensors files of a checkpoint, in a directory or in the cache of the hub; none if it has no such files."""
    single = _checkpoint_file(source, SINGLE_FILE, revision, local_only)
    if single is not None:
        return [single]
    index = _checkpoint_file(source, INDEX_FILE, revision, local_only)
    if index is None:
        return []
    names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    files = [_checkpoint_file(source, name, revision, local_only) for name in names]
    return [file for file in files if file is not None] if None not in files else []


def check_shards(directory: Path) -> None:
    """Raise if files that the index of a directory lists are missing."""
    index = directory / INDEX_FILE
    if (directory / SINGLE_FILE).is_file() or not index.is_file():
        return
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise RheoscopeError(
            Message("{file} is no index of weight files; download it again", file=str(index))
        ) from error
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        raise RheoscopeError(
            Message(
                "{directory} lacks {n} of the {total} weight files that {index} lists ({names}); download them again",
                directory=str(directory),
                n=len(missing),
                total=len(names),
                index=INDEX_FILE,
                names=", ".join([*missing[:3], *(["…"] if len(missing) > 3 else [])]),
            )
        )


def _checkpoint_file(source: str | Path, name: str, revision: str | None, local_only: bool) -> Path | None:
    from transformers.utils import cached_file

    options: dict[str, Any] = {
        "_raise_exceptions_for_gated_repo": False,
        "_raise_exceptions_for_missing_entries": False,
        "_raise_exceptions_for_connection_errors": False,
    }
    path = cached_file(str(source), name, revision=revision, local_files_only=local_only, **options)
    return None if path is None else Path(path)


def tensors_to_stream(
    source: str | Path, files: Sequence[Path], dtype: torch.dtype | str, device: torch.device, stream: bool | None
) -> dict[str, FileTensor]:
    """The tensors of a checkpoint if it is to be streamed, else nothing.

    `stream=None` streams a checkpoint whose weights do not fit into memory, with a warning.
    """
    if stream is False:
        return {}
    if not files:
        if stream:
            raise RheoscopeError(
                Message(
                    "{source} has no {file}, and only safetensors files can be streamed",
                    source=str(source),
                    file=SINGLE_FILE,
                ),
                use(stream=False),
            )
        return {}
    tensors = read_headers(files)
    if stream:
        return tensors
    needed = _needed_bytes(tensors, dtype)
    if fits(needed, device):
        return {}
    warnings.warn(
        Message(
            "{source} needs {needed:.1f} GiB and {device} has {free:.1f} GiB free, so its weights are read block by block",
            source=str(source),
            needed=needed / 2**30,
            device=str(device),
            free=(available_bytes(device) or 0) / 2**30,
        ),
        StreamedModelWarning,
        stacklevel=2,
    )
    return tensors


def checkpoint_tensors(
    source: str | Path,
    config: Any,
    options: dict[str, Any],
    dtype: torch.dtype | str,
    device: torch.device,
    stream: bool | None,
) -> dict[str, FileTensor]:
    """The tensors of a checkpoint that is to be streamed, else nothing. Quantised weights are always read at once.

    `options` are those with which transformers reads the files.
    """
    is_quantised = "gguf_file" in options or getattr(config, "quantization_config", None) is not None
    if is_quantised and stream:
        raise RheoscopeError(
            Message(
                "{source} is quantised, and only unquantised weights can be streamed; choose the unquantised model",
                source=str(source),
            ),
            use(stream=False),
        )
    if is_quantised or stream is False:
        return {}
    files = weight_files(source, options["revision"], options["local_files_only"])
    return tensors_to_stream(source, files, dtype, device, stream)


def _needed_bytes(tensors: Mapping[str, FileTensor], dtype: torch.dtype | str) -> int:
    """The bytes of a checkpoint in memory, in a dtype or (`auto`) in its own."""
    return sum(
        resident_bytes(
            name,
            torch.Size(tensor.shape).numel(),
            dtype if isinstance(dtype, torch.dtype) and tensor.file_dtype.is_floating_point else tensor.file_dtype,
        )
        for name, tensor in tensors.items()
    )


def network_of_stored_weights(
    network_class: Any, config: Any, tensors: dict[str, FileTensor], dtype: Any
) -> tuple[Any, dict[str, Any]]:
    """The network with stored weights, and what transformers reports about its loading.

    transformers renames, joins and converts the weights as it does in memory. Here each of these steps is deferred.
    """
    stored: dict[str, StoredTensor] = {name: stored_tensor(tensor) for name, tensor in tensors.items()}
    with deferring():
        network, loading_info = network_class.from_pretrained(
            None, state_dict=stored, config=config, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True
        )
    return network, loading_info
