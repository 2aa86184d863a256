"""The default model is loaded once per test process; loading it again returns the same model.

Loading reads, hashes and certifies, which takes longer than most tests. Other models test that it does so
(tests/test_opening.py), and so do processes that tests start. A model whose weights a test has changed is loaded again.
"""

from functools import wraps
from typing import Any

from torch import nn


def install() -> None:
    """Replace `opening._load_native`, which `load` looks up at every call. Called before any test."""
    from rheoscope import opening

    default_model, load_native = opening.DEFAULT_MODEL, opening._load_native
    loaded: dict[tuple[Any, ...], tuple[Any, list[tuple[int, int]]]] = {}

    @wraps(load_native)
    def load_once(source: Any, device: Any, dtype: Any, tokenizer: Any, initial_seed: Any, load_progress: Any) -> Any:
        if source not in (default_model, str(default_model)) or tokenizer is not None:
            return load_native(source, device, dtype, tokenizer, initial_seed, load_progress)
        model, versions = loaded.get((source, device, dtype, initial_seed), (None, []))
        if model is None or weight_versions(model.network) != versions:
            model = load_native(source, device, dtype, tokenizer, initial_seed, load_progress)
            loaded[source, device, dtype, initial_seed] = model, weight_versions(model.network)
        for report_progress in load_progress:
            report_progress(1, 1)
        return model

    opening._load_native = load_once


def weight_versions(network: nn.Module) -> list[tuple[int, int]]:
    """The address of every weight, and the number of in-place writes to it."""
    return [(weight.data_ptr(), weight._version) for weight in network.parameters()]
