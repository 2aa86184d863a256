"""Modes of torch that hold while a race runs."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


@contextmanager
def deterministic_algorithms(enabled: bool) -> Iterator[None]:
    """Meanwhile a GPU adds numbers in the same order every time, where it is asked to; what cannot is refused by torch."""
    was_enabled = torch.are_deterministic_algorithms_enabled()
    if enabled:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when a GPU is first used
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_enabled)


def raised_recompile_limit(compiled: bool) -> AbstractContextManager[object]:
    """One graph an entrant of the same source code, where torch stops at 8 without a word; past this it says so."""
    if not compiled:
        return nullcontext()
    from torch._dynamo import config

    return config.patch(recompile_limit=512, accumulated_recompile_limit=4096, fail_on_recompile_limit_hit=True)
