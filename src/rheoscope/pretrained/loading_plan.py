"""A plan of a model that is too large to try: bytes, memory, reading time and FLOPs, from its config alone."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.pretrained.checkpoint import model_class, read_config
from rheoscope.running.available_memory import available_bytes
from rheoscope.running.read_speed import measure_read_speed
from rheoscope.running.streamed_weights import block_names, resident_bytes
from rheoscope.running.weight_files import parse_device, parse_dtype
from rheoscope.shapes import RheoscopeError

EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""The names of config fields with the number of experts of a layer."""
CONFIG_FILE = "config.json"


@dataclass(frozen=True)
class LoadingPlan:
    """What a model needs. All sizes are in bytes; `flops` are those of the points of a text of `tokens` tokens, without logits.

    `table_bytes` are the weights outside the layers by name. `file_bytes` is the size of the checkpoint.
    """

    model: str
    model_type: str
    dtype: str
    device: str
    parameters: int
    block_bytes: tuple[int, ...]
    table_bytes: dict[str, int]
    file_bytes: int
    tokens: int
    points_bytes: int
    flops: int
    resident_weights: int
    free_bytes: int | None
    read_speed: float
    speed_path: str

    @property
    def total_bytes(self) -> int:
        """The bytes of all weights in memory."""
        return sum(self.block_bytes) + sum(self.table_bytes.values())

    @property
    def largest_table(self) -> int:
        return max(self.table_bytes.values(), default=0)

    @property
    def peak_resident(self) -> int:
        """The memory of the model with all weights, the float32 copies of the View, and one text."""
        return self.resident_weights + self.points_bytes

    @property
    def peak_streamed(self) -> int:
        """The memory of two blocks, the largest table, and one text."""
        return 2 * max(self.block_bytes, default=0) + self.largest_table + self.points_bytes

    @property
    def read_seconds(self) -> float:
        """The time to read the checkpoint once: at least the time of a trace of a streamed model."""
        return self.file_bytes / self.read_speed

    @property
    def fits(self) -> bool | None:
        """Whether the resident model fits into the free memory; None if that is unknown."""
        return None if self.free_bytes is None else self.peak_resident <= self.free_bytes


def plan_loading(
    source: str | Path,
    tokens: int = 512,
    dtype: str | None = None,
    device: str | None = None,
    revision: str | None = None,
) -> LoadingPlan:
    """The plan of a model by hub name, of a directory, or of a `config.json`. No weights are needed.

    The speed of the disk is measured on the files of the directory if there are any, else on a temporary file.
    """
    config = read_config(_directory(source), revision)
    network, target_device = empty_network(config), parse_device(device or "cpu")
    file_dtype = getattr(config, "dtype", None) or torch.float32
    parsed = parse_dtype(dtype, device)
    target_dtype = file_dtype if parsed == "auto" else parsed
    names, weights = block_names(network), dict(network.named_parameters())
    blocks = [sum(x.numel() for key, x in weights.items() if key.startswith(f"{name}.")) for name in names]
    tables = {key: x.numel() for key, x in weights.items() if not any(key.startswith(f"{name}.") for name in names)}
    parameters = sum(x.numel() for x in weights.values())
    speed, path = measure_read_speed(Path(source))
    width, layers = _size(config, "hidden_size"), len(names)
    return LoadingPlan(
        model=str(source),
        model_type=config.model_type,
        dtype=str(target_dtype).removeprefix("torch."),
        device=str(target_device),
        parameters=parameters,
        block_bytes=tuple(numel * target_dtype.itemsize for numel in blocks),
        table_bytes={key: numel * target_dtype.itemsize for key, numel in tables.items()},
        file_bytes=parameters * file_dtype.itemsize,
        tokens=tokens,
        points_bytes=(2 * layers + 1) * tokens * width * max(4, target_dtype.itemsize),
        flops=trace_flops(network, config, tokens),
        resident_weights=sum(resident_bytes(key, x.numel(), target_dtype) for key, x in weights.items()),
        free_bytes=available_bytes(target_device),
        read_speed=speed,
        speed_path=str(path),
    )


def empty_network(config: Any) -> nn.Module:
    """The network of a config on the meta device: shapes without numbers."""
    try:
        with torch.device("meta"):
            network: nn.Module = model_class(config)(copy.deepcopy(config))
    except Exception as error:  # a config may ask for anything
        raise RheoscopeError(
            Message(
                "cannot build a {model_type} from this config ({reason}); check its config.json",
                model_type=config.model_type,
                reason=f"{type(error).__name__}: {error}".splitlines()[0],
            )
        ) from error
    if not block_names(network):
        raise RheoscopeError(
            Message("a {model_type} has no list of layers, so there is nothing to plan", model_type=config.model_type),
            Advice("", "rheoscope describe --plan gpt2"),
        )
    return network


def trace_flops(network: nn.Module, config: Any, tokens: int) -> int:
    """FLOPs of the points of one text: 2 · (matrix parameters of the layers) · tokens, plus scores and weighted sums of all pairs.

    Experts count as often as a token uses them. A causal mask halves the pairs.
    """
    names = block_names(network)
    layer_weights = {
        key: x
        for key, x in network.named_parameters()
        if x.ndim > 1 and any(key.startswith(f"{name}.") for name in names)
    }
    used = _used_expert_share(config)
    matrices = sum(x.numel() * (used if "expert" in key else 1) for key, x in layer_weights.items())
    heads = _size(config, "num_attention_heads")
    head_width = getattr(config, "head_dim", None) or _size(config, "hidden_size") // heads
    pairs = tokens * (tokens + 1) // 2 if not _is_bidirectional(config) else tokens**2
    return round(2 * matrices * tokens) + 4 * len(names) * heads * head_width * pairs


def _used_expert_share(config: Any) -> float:
    """The share of experts that a token uses; 1 for a model without experts."""
    used = getattr(config, "num_experts_per_tok", None)
    counts = [getattr(config, name, None) for name in EXPERT_COUNTS]
    total = next((count for count in counts if count), None)
    return used / total if used and total else 1.0


def _is_bidirectional(config: Any) -> bool:
    import transformers

    return type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)


def _size(config: Any, name: str) -> int:
    """A size of a config. The configs of some families nest the one of their text model."""
    return int(getattr(config.get_text_config(), name))


def _directory(source: str | Path) -> str | Path:
    """The directory of a `config.json`, so that the file itself can be named."""
    return Path(source).parent if Path(source).name == CONFIG_FILE and Path(source).is_file() else source
