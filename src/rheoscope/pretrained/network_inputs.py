"""What a network reads: token ids, or features such as the pixels of an image; and random features for the tape and the proof."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.pretrained.packed_patches import is_packed, merge_size, pack_patches, packed_size
from rheoscope.shapes import RheoscopeError

TOKEN_INPUT = "input_ids"
IMAGE_INPUT, SPECTRUM_INPUT, SAMPLE_INPUT = "pixel_values", "input_features", "input_values"
FEATURE_INPUTS = (IMAGE_INPUT, SPECTRUM_INPUT, SAMPLE_INPUT)
"""The inputs of networks that read no token ids: pixels, the spectrum of a sound, and its samples."""
DEFAULT_CHANNELS, SECOND, SHORTER = 3, 16_000, 1_000
"""The channels of an image, the samples of a second of sound, and by how many samples the next shorter sound differs."""


def main_input(network: Any) -> str:
    """The name of the input from which a network computes its first points."""
    if is_packed(network):
        return IMAGE_INPUT
    name, parameters = getattr(network, "main_input_name", TOKEN_INPUT), inspect.signature(network.forward).parameters
    if name not in parameters:  # some vision towers do not declare theirs
        name = next((x for x in FEATURE_INPUTS if x in parameters), name)
    return name if name in FEATURE_INPUTS else TOKEN_INPUT


def reads_tokens(network: Any) -> bool:
    return main_input(network) == TOKEN_INPUT


def base_network(network: Any) -> Any:
    """The part of a network below its head, if this part reads what the network reads."""
    base = network.base_model
    return base if main_input(network) in inspect.signature(base.forward).parameters else network


def is_pair(network: Any) -> bool:
    """Whether a network is an encoder-decoder, and not one side of it."""
    has_target = "decoder_input_ids" in inspect.signature(network.forward).parameters
    return has_target and bool(getattr(network.config, "is_encoder_decoder", False))


def feature_arguments(network: Any, features: Float[Tensor, "b *size"]) -> dict[str, Tensor]:
    """The arguments of a network for a batch of features."""
    return pack_patches(network, features) if is_packed(network) else {main_input(network): features}


def random_features(network: Any, seed: int = 0) -> Tensor:
    """Random features (1, …) of the shape that a network reads, on its device and in its dtype."""
    weight = next(network.parameters())
    shape = feature_shape(network)
    noise = torch.randn(1, *shape, generator=torch.Generator().manual_seed(seed))
    return noise.to(weight.device, weight.dtype)


def feature_inputs(network: Any) -> Iterator[dict[str, Any]]:
    """Random features for a forward pass, first of the network's own size, then of images with fewer rows of patches."""
    name = main_input(network)
    features = random_features(network)
    yield feature_arguments(network, features)
    if name == SAMPLE_INPUT:
        yield from ({name: features[:, :n]} for n in range(SECOND - SHORTER, SECOND // 2, -SHORTER))
    sizes = patch_size(network.config) if name == IMAGE_INPUT else None
    if sizes is None:
        return
    has_option = "interpolate_pos_encoding" in inspect.signature(network.forward).parameters
    options = {"interpolate_pos_encoding": True} if has_option else {}
    step = merge_size(network.config) if is_packed(network) else 1
    for n_rows in range(features.shape[-2] // sizes[0] - step, 1, -step):
        inputs = feature_arguments(network, features[..., : n_rows * sizes[0], :]) | options
        if _runs(network, inputs):
            yield inputs


@torch.no_grad()
def _runs(network: Any, inputs: dict[str, Any]) -> bool:
    """Whether a network accepts inputs of another size."""
    try:
        network(**inputs)
    except Exception:  # a network may refuse a size in any way
        return False
    return True


def feature_shape(network: Any) -> tuple[int, ...]:
    """The shape of the features of one image or sound, from the config of a network."""
    if is_packed(network):
        return packed_size(network, network_sizes(network))
    config, input_name = network.config, main_input(network)
    if input_name == IMAGE_INPUT:
        return (int(getattr(config, "num_channels", None) or DEFAULT_CHANNELS), *image_size(config))
    if input_name == SAMPLE_INPUT:
        return (SECOND,)
    n_bins, n_positions = getattr(config, "num_mel_bins", None), getattr(config, "max_source_positions", None)
    if n_bins is None or n_positions is None:
        raise RheoscopeError(Message("the config of {type} has no number of frames", type=config.model_type))
    return int(n_bins), 2 * int(n_positions)


def network_sizes(network: Any) -> set[int]:
    """The sizes of all weights, and all numbers of the config."""
    sizes = {size for parameter in network.parameters() for size in parameter.shape}
    return sizes | {value for value in vars(network.config).values() if isinstance(value, int)}


def image_size(config: Any) -> tuple[int, int]:
    """The height and the width of the images of a config."""
    size = getattr(config, "image_size", None)
    if isinstance(size, dict):
        size = size.get("height", size.get("shortest_edge")), size.get("width", size.get("shortest_edge"))
    sizes = [size, size] if isinstance(size, int) else list(size or [])
    if len(sizes) != 2 or not all(isinstance(x, int) for x in sizes):
        raise RheoscopeError(Message("the config of {type} has no image size", type=config.model_type))
    return sizes[0], sizes[1]


def patch_size(config: Any) -> tuple[int, int] | None:
    """The height and the width of the patches of a config; None if it has none."""
    size = getattr(config, "patch_size", None)
    sizes = [size, size] if isinstance(size, int) else list(size or [])
    return (int(sizes[0]), int(sizes[1])) if len(sizes) == 2 else None


def load_processor(source: str | Path, options: dict[str, Any]) -> Any:
    """The image processor or feature extractor of a checkpoint; None if it has none."""
    from transformers import AutoFeatureExtractor, AutoImageProcessor

    for processor_class in (AutoImageProcessor, AutoFeatureExtractor):
        try:
            return processor_class.from_pretrained(source, **options)
        except Exception:  # the libraries may raise anything
            continue
    return None


def load_pair_processor(source: str | Path, options: dict[str, Any]) -> Any:
    """The processor of an encoder-decoder of features, which has a tokenizer and a feature extractor; None if it has none."""
    from transformers import AutoProcessor

    try:
        processor = AutoProcessor.from_pretrained(source, **options)
    except Exception:  # the libraries may raise anything
        return None
    return processor if hasattr(processor, "tokenizer") else None
