"""Modes of torch for the duration of a race."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


@contextmanager
def deterministic_algorithms(enabled: bool) -> Iterator[None]:
    """Use deterministic algorithms if `enabled`. Torch raises for operations that have none."""
    was_enabled = torch.are_deterministic_algorithms_enabled()
    if enabled:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA is initialised
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_enabled)


def raised_recompile_limit(compiled: bool) -> AbstractContextManager[object]:
    """Raise torch's limit of 8 graphs per function, which entrants with the same source code would exceed without notice."""
    if not compiled:
        return nullcontext()
    from torch._dynamo import config

    return config.patch(recompile_limit=512, accumulated_recompile_limit=4096, fail_on_recompile_limit_hit=True)
