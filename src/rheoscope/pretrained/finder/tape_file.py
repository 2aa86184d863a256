"""Tapes in the user's cache directory, so that a known type of network is described without another recorded forward pass.

A file holds what ran, and no weights. A description that is read off a stored tape is accepted as any other: only if the proof at
random points agrees. Files that are damaged, or that lead to no proven description, are replaced.
"""

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from torch import nn

from rheoscope.files import atomic_file
from rheoscope.pretrained.finder.garbage_collection import no_collections
from rheoscope.pretrained.finder.plain_products import is_converted
from rheoscope.pretrained.finder.repeated_layers import without_repeats
from rheoscope.pretrained.finder.stored_tape import TapeError, from_text, to_text
from rheoscope.pretrained.finder.tape import Tape

T = TypeVar("T")
KNOWN_PACKAGES = ("torch.", "transformers.")
"""Packages whose version says what their modules compute. Tapes of other modules are not stored."""
UNRELATED_FIELDS = ("_name_or_path", "architectures", "dtype", "transformers_version")
"""Fields of a config that decide nothing beyond what its modules and weights show."""
LARGEST_CONSTANTS, MOST_FILES = 1 << 22, 200
"""The bytes of tensors that are no weights, above which a tape is not stored, and the number of tapes that are kept."""


@dataclass(eq=False)
class TapeFile:
    """The file of the tape of one type and config. `is_read` says that a description comes from it."""

    path: Path
    is_read: bool = False

    def read(self, network: nn.Module) -> Tape | None:
        """The stored tape, if there is a sound one."""
        from safetensors import safe_open

        try:
            with safe_open(self.path, "pt") as file:
                stored = file.metadata()
                constants = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            if stored["digest"] == _digest(stored["tape"]):
                return from_text(stored["tape"], constants, network)
        except Exception:  # whatever is wrong with the file, the network is recorded again
            return None
        return None

    def write(self, tape: Tape, network: nn.Module) -> None:
        """Store a tape. One that cannot be stored, in a folder that cannot be written, is left out."""
        from safetensors.torch import save_file

        with suppress(TapeError, OSError):
            text, constants = to_text(tape, network)
            if sum(x.nbytes for x in constants.values()) > LARGEST_CONSTANTS:
                return
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(self.path) as temporary:
                copies = {name: x.contiguous().clone() for name, x in constants.items()}
                save_file(copies, temporary, {"tape": text, "digest": _digest(text)})
            remove_oldest(self.path.parent)

    def discard(self) -> bool:
        """Remove the file. Whether a description came from it, so that another one may be right."""
        was_read, self.is_read = self.is_read, False
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
        return was_read


@no_collections()
def describe_tape(
    network: nn.Module,
    file: TapeFile | None,
    record: Callable[[Any], Tape],
    describe: Callable[[Any, Tape], T],
    n_layers: Callable[[T], int],
) -> T:
    """The description of a network from its stored tape, else from one that is recorded and stored."""
    tape = None if file is None else file.read(network)
    if file is not None and tape is not None:
        try:
            file.is_read = True
            return describe(network, tape)
        except Exception:  # a wrong tape may fail anywhere
            file.discard()
    tape = record(network)
    description = describe(network, tape)
    if file is not None:
        file.write(without_repeats(tape, network, n_layers(description)), network)
    return description


def tape_file(network: Any) -> TapeFile | None:
    """The file of the tape of a network; None if its modules or weights are not plain ones of PyTorch and transformers."""
    modules = dict(network.named_modules())
    tensors = [*network.named_parameters(), *network.named_buffers()]
    is_known = all(f"{type(x).__module__}.".startswith(KNOWN_PACKAGES) for x in modules.values())
    is_plain = all(type(x) in (nn.Parameter, torch.Tensor) for _, x in tensors)
    if not is_known or not is_plain or any(map(is_converted, modules.values())):
        return None
    config = {name: x for name, x in network.config.to_dict().items() if name not in UNRELATED_FIELDS}
    key = [
        sources_digest(),
        torch.__version__,
        transformers.__version__,
        config,
        [[name, type(x).__module__, type(x).__qualname__] for name, x in modules.items()],
        [[name, *x.shape, str(x.dtype), str(x.device)] for name, x in tensors],
    ]
    name = f"{network.config.model_type}-{_digest(json.dumps(key, default=str))[:24]}.safetensors"
    return TapeFile(cache_folder() / name)


def cache_folder() -> Path:
    """The folder of tapes in the user's cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))) / "rheoscope" / "tapes"


def remove_oldest(folder: Path) -> None:
    """Remove all but the newest files of a folder."""
    files = sorted(folder.glob("*.safetensors"), key=lambda x: x.stat().st_mtime)
    for path in files[:-MOST_FILES]:
        path.unlink(missing_ok=True)


@cache
def sources_digest() -> str:
    """A digest of the files that record, store and read tapes: another version of them has tapes of its own."""
    return _digest("".join(path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("*.py"))))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
