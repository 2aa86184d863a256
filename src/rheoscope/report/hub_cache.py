"""The local cache of models from the Hugging Face hub, read without importing transformers."""

import os
from pathlib import Path


def hub_cache_folder() -> Path:
    """The folder in which transformers keeps downloaded models."""
    home = os.environ.get("HF_HOME", str(Path.home() / ".cache" / "huggingface"))
    return Path(os.environ.get("HF_HUB_CACHE", str(Path(home) / "hub")))


def cached_hub_names() -> list[str]:
    """Hub names of the models whose files are on this machine.

    >>> isinstance(cached_hub_names(), list)
    True
    """
    return [
        folder.name.removeprefix("models--").replace("--", "/")
        for folder in sorted(hub_cache_folder().glob("models--*"))
        if any(folder.glob("snapshots/*"))
    ]


def cached_snapshot(name: str) -> Path | None:
    """The folder with the newest files of a hub model on this machine, or None.

    >>> cached_snapshot("no/such-model")
    """
    snapshots = (hub_cache_folder() / f"models--{name.replace('/', '--')}").glob("snapshots/*")
    return max(snapshots, key=lambda folder: folder.stat().st_mtime, default=None)
