"""JSON files that end with a digest of their content, so that every changed byte is found."""

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any


def seal(content: Mapping[str, Any]) -> str:
    """The content as JSON, with its digest as the last entry."""
    digest = blake2b(json.dumps(content, indent=1).encode(), digest_size=16).hexdigest()
    return json.dumps({**content, "digest": digest}, indent=1)


def unseal(data: bytes) -> dict[str, Any]:
    """The content of a sealed file. Raises ValueError unless every byte is the one that was written.

    >>> unseal(seal({"shard": 3}).encode())
    {'shard': 3}
    >>> unseal(seal({"shard": 3}).replace("3", "4", 1).encode())
    Traceback (most recent call last):
    ...
    ValueError: the content differs from its digest
    """
    try:
        content = json.loads(data)
    except RecursionError as error:
        raise ValueError("the content is nested too deeply") from error
    if not isinstance(content, dict):
        raise ValueError("the content is no object")
    content.pop("digest", None)
    if seal(content).encode() != data:
        raise ValueError("the content differs from its digest")
    return content
