"""Quantised checkpoints: GGUF files, the packages that open each kind, and the conversions that they do not allow."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.pretrained.library_errors import one_line
from rheoscope.pretrained.quantised_weights import quantised_modules
from rheoscope.shapes import RheoscopeError

GGUF_SUFFIX = ".gguf"
PACKAGES = {
    "bitsandbytes": "bitsandbytes accelerate",
    "torchao": "torchao accelerate",
    "gptq": "gptqmodel optimum accelerate",
    "awq": "gptqmodel accelerate",
    "hqq": "hqq accelerate",
    "quanto": "optimum-quanto accelerate",
    "compressed-tensors": "compressed-tensors accelerate",
}
"""What to install for each method of quantisation."""


def locate_gguf(source: str | Path) -> tuple[str | Path, dict[str, Any]]:
    """The directory or the hub name of a GGUF file and the option that names the file. Any other source has no option.

    >>> locate_gguf("user/model/weights.Q4_0.gguf"), locate_gguf("gpt2")
    (('user/model', {'gguf_file': 'weights.Q4_0.gguf'}), ('gpt2', {}))
    """
    path = Path(source)
    if path.suffix.lower() != GGUF_SUFFIX:
        return source, {}
    is_on_hub = not path.is_absolute() and len(path.parts) == 3 and not path.exists()
    if not path.is_file() and not is_on_hub:
        raise RheoscopeError(Message("there is no file {file}; choose a GGUF file of a model", file=str(path)))
    return str(path.parent), {"gguf_file": path.name}


def require_gguf(file: str) -> None:
    """Raise if the package that reads GGUF files is not installed."""
    if find_spec("gguf") is None:
        raise RheoscopeError(Message("reading {file} needs gguf", file=file), Advice("", "pip install gguf"))


def quantisation_error(source: str | Path, config: Any, error: Exception) -> RheoscopeError | None:
    """The error of a quantised checkpoint whose package is missing or does not run here; None for any other checkpoint."""
    settings = getattr(config, "quantization_config", None)
    if settings is None:
        return None
    method = settings.get("quant_method") if isinstance(settings, dict) else getattr(settings, "quant_method", "")
    name = str(getattr(method, "value", method))
    packages = PACKAGES.get(name, name)
    return RheoscopeError(
        Message(
            "{source} is quantised by {method}, which does not open it here ({reason}); install its packages, or choose the "
            "unquantised model",
            source=str(source),
            method=name,
            reason=one_line(error),
        ),
        Advice("", f"pip install {packages}"),
    )


def refuse_conversion(network: Any, device: torch.device, dtype: torch.dtype | None) -> None:
    """Raise if quantised weights would be converted to another device or dtype."""
    weight = next(network.parameters())
    if (device, dtype or weight.dtype) == (weight.device, weight.dtype) or next(
        quantised_modules(network), None
    ) is None:
        return
    raise RheoscopeError(
        Message(
            "{network} is quantised for {dtype} on {device} and cannot be converted; quantise it for the device and dtype that "
            "you need",
            network=type(network).__name__,
            dtype=str(weight.dtype).removeprefix("torch."),
            device=str(weight.device),
        )
    )
