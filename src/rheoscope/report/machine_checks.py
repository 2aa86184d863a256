"""What this machine can run: packages, devices, caches, memory and cores, each with what it enables and what to type.

The checks import nothing that may be missing, so they also run in a broken installation.
"""

import json
import os
import platform
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rheoscope.messages.catalogue import render
from rheoscope.messages.message import Message, plural
from rheoscope.report.console import console
from rheoscope.report.hub_cache import cached_hub_names, hub_cache_folder

PACKAGE = Path(__file__).parents[1]
NETWORK_TIMEOUT = 1.5
"""Seconds to wait for the hub."""
MIN_MEMORY = 2.0
"""GiB that the main job needs."""


@dataclass(frozen=True)
class Check:
    """One line of `rheoscope doctor`. `command` is what to type if the part is missing."""

    name: str
    is_ok: bool
    detail: str
    enables: str
    command: str = ""


@dataclass(frozen=True)
class PackageNeed:
    """A package, what it enables and the extra of Rheoscope that installs it."""

    package: str
    enables: Message
    extra: str = ""

    @property
    def command(self) -> str:
        return f"pip install 'rheoscope[{self.extra}]'" if self.extra else f"pip install {self.package}"


REQUIRED_PACKAGES = (
    PackageNeed("torch", Message("everything")),
    PackageNeed("xarray", Message("every analysis")),
    PackageNeed("transformers", Message("models from the Hugging Face hub")),
    PackageNeed("matplotlib", Message("figures: rs.plot and PNG files")),
)
OPTIONAL_PACKAGES = (
    PackageNeed("anywidget", Message("rs.show in a notebook"), "notebook"),
    PackageNeed("fastapi", Message("rheoscope studio"), "studio"),
    PackageNeed("uvicorn", Message("rheoscope studio"), "studio"),
    PackageNeed("sklearn", Message("density_clusters and rheoscope train digits"), "density"),
    PackageNeed("pyarrow", Message("rheoscope corpus"), "corpus"),
    PackageNeed("duckdb", Message("rheoscope corpus query"), "corpus"),
    PackageNeed("ray", Message("--workers of rheoscope corpus and rheoscope race"), "corpus"),
    PackageNeed("peft", Message("adapters such as LoRA"), "adapters"),
    PackageNeed("gguf", Message("GGUF files"), "gguf"),
    PackageNeed("tensorboard", Message("rheoscope train --tensorboard"), "train"),
)
DISTRIBUTIONS = {"sklearn": "scikit-learn"}
"""Import name → name on PyPI, where they differ."""


def machine_checks() -> Iterator[Check]:
    """Every check, in the order in which a user needs the parts."""
    yield from _guarded("Python", _check_python)
    for need in REQUIRED_PACKAGES:
        yield _check_package(need)
    yield from _guarded("CUDA", _check_cuda)
    yield from _guarded("MPS", _check_mps)
    yield from _guarded("Triton", _check_triton)
    for need in OPTIONAL_PACKAGES:
        yield _check_package(need)
    yield from _guarded("studio page", _check_page)
    yield from _guarded("default model", _check_default_model)
    yield from _guarded("hub cache", _check_hub_cache)
    yield from _guarded("network", _check_network)
    yield from _guarded("cache folder", _check_cache_folder)
    yield from _guarded("memory", _check_memory)
    yield from _guarded("cores", _check_cores)


def _guarded(name: str, check: Callable[[], Check]) -> Iterator[Check]:
    """A check whose own failure is its result."""
    try:
        yield check()
    except Exception as error:  # a broken driver or package may raise anything
        yield Check(name, False, Message("{kind}: {reason}", kind=type(error).__name__, reason=str(error)), "")


def _check_python() -> Check:
    is_ok = sys.version_info >= (3, 11)
    return Check(
        "Python", is_ok, platform.python_version(), Message("everything"), "" if is_ok else "uv python install 3.12"
    )


def _check_package(need: PackageNeed) -> Check:
    distribution = DISTRIBUTIONS.get(need.package, need.package)
    if not _is_installed(need.package):
        return Check(distribution, False, Message("not installed"), need.enables, need.command)
    try:
        version = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        version = Message("installed")
    return Check(distribution, True, version, need.enables)


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _torch() -> Any:
    """torch, or None if it cannot be imported."""
    try:
        return import_module("torch")
    except Exception:  # a broken installation may raise anything
        return None


GPU_ENABLES = Message("--device cuda: large models, long texts and training")


def _check_cuda() -> Check:
    torch = _torch()
    if torch is None:
        return Check("CUDA", False, Message("torch cannot be imported"), GPU_ENABLES, "pip install torch")
    if torch.version.cuda is None:
        command = "pip install torch --index-url https://download.pytorch.org/whl/cu128"
        return Check("CUDA", False, Message("this torch is built without CUDA"), GPU_ENABLES, command)
    if not torch.cuda.is_available():
        return Check("CUDA", False, Message("torch sees no GPU"), GPU_ENABLES, "nvidia-smi")
    properties = torch.cuda.get_device_properties(0)
    detail = Message(
        "{n} × {name}, {memory:.0f} GiB", n=torch.cuda.device_count(), name=properties.name,
        memory=properties.total_memory / 2**30,
    )  # fmt: skip
    return Check("CUDA", True, detail, GPU_ENABLES)


def _check_mps() -> Check:
    torch, enables = _torch(), Message("--device mps on an Apple GPU")
    if torch is not None and torch.backends.mps.is_available():
        return Check("MPS", True, Message("available"), enables)
    return Check("MPS", False, Message("only on macOS with an Apple GPU"), enables)


def _check_triton() -> Check:
    enables = Message("fused GPU kernels of every mechanism")
    if _is_installed("triton"):
        return Check("Triton", True, metadata.version("triton"), enables)
    return Check(
        "Triton", False, Message("not installed"), enables, "pip install triton" if sys.platform == "linux" else ""
    )


def _check_page() -> Check:
    enables = Message("the page of rheoscope studio")
    if (PACKAGE / "studio" / "static" / "index.html").is_file():
        return Check("studio page", True, Message("built"), enables)
    return Check("studio page", False, Message("not built"), enables, "make studio")


def _check_default_model() -> Check:
    enables = Message("every command without --model")
    if (PACKAGE / "models" / "default" / "model.safetensors").is_file():
        return Check("default model", True, Message("ships with the package"), enables)
    return Check(
        "default model", False, Message("its weights are missing"), enables, "pip install --force-reinstall rheoscope"
    )


def _check_hub_cache() -> Check:
    folder, names = hub_cache_folder(), cached_hub_names()
    detail = plural("{n} model in {folder}", "{n} models in {folder}", n=len(names), folder=str(folder))
    command = "" if names else "rheoscope --model gpt2 'The keys'"
    return Check("hub cache", bool(names), detail, Message("models from the hub without a network"), command)


def _check_network() -> Check:
    enables = Message("downloads from the Hugging Face hub")
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return Check("network", False, Message("turned off by HF_HUB_OFFLINE"), enables, "unset HF_HUB_OFFLINE")
    if _reaches_hub():
        return Check("network", True, Message("huggingface.co answers"), enables)
    return Check("network", False, Message("huggingface.co does not answer"), enables, "curl -I https://huggingface.co")


def _reaches_hub() -> bool:
    """Whether the hub accepts a connection in time. Looking up its name may hang, so a thread does it."""
    answers: list[bool] = []

    def connect() -> None:
        try:
            with socket.create_connection(("huggingface.co", 443), timeout=NETWORK_TIMEOUT):
                answers.append(True)
        except OSError:
            answers.append(False)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(NETWORK_TIMEOUT)
    return answers == [True]


def _check_cache_folder() -> Check:
    folder = Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))) / "rheoscope"
    enables = Message("recent models in the studio")
    parent = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=parent):
            return Check("cache folder", True, Message("{folder} is writable", folder=str(folder)), enables)
    except OSError as error:
        detail = Message("cannot write {path}: {reason}", path=str(parent), reason=error.strerror or str(error))
        return Check("cache folder", False, detail, enables, "export XDG_CACHE_HOME=/tmp/cache")


def _check_memory() -> Check:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    detail = Message("{total:.0f} GiB", total=total)
    n_weights = total * 2**30 / 8  # four bytes for each weight, and the same again to compute
    enables = Message("models with up to about {n:.1f} billion weights in float32", n=n_weights / 1e9)
    return Check("memory", total >= MIN_MEMORY, detail, enables)


def _check_cores() -> Check:
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    detail = plural("{n} core", "{n} cores", n=n_cores)
    return Check("cores", True, detail, Message("analyses and controls at the same time"))


def show_checks(as_json: bool = False) -> None:
    """Print one line per check, or all checks as JSON."""
    if as_json:
        print(json.dumps({"checks": [vars(check) for check in machine_checks()]}, ensure_ascii=False, indent=1))
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("", Message("part"), Message("found"), Message("what it enables"), Message("what to type")):
        table.add_column(render(heading), overflow="fold")
    for check in machine_checks():
        status = Message("ok") if check.is_ok else Message("missing")
        cells = [check.name, render(check.detail), render(check.enables), check.command]
        table.add_row(render(status), *cells, style=None if check.is_ok else "yellow")
    console().print(table)
