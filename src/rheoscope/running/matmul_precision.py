"""Products of float32 matrices in full float32, whatever a training loop chose for its speed.

`torch.set_float32_matmul_precision("high")` lets a GPU round the factors of a product to TF32, which has 11 significant bits. A proof
that compares two ways to the same number would then see the rounding and refuse a correct description.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

BACKENDS: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]


@contextmanager
def full_float32_products() -> Iterator[None]:
    """Multiply float32 matrices in float32 on every device. The previous choice returns at the end."""
    precisions = [backend.fp32_precision for backend in BACKENDS]
    try:
        for backend in BACKENDS:
            backend.fp32_precision = "ieee"
        yield
    finally:
        for backend, precision in zip(BACKENDS, precisions, strict=True):
            backend.fp32_precision = precision
