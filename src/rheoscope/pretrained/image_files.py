"""Image files as the pixels that a network reads: opened by Pillow, prepared by the image processor of the model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError


def open_image(path: Path) -> Any:
    """The image of a file in red, green and blue."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except FileNotFoundError as error:
        raise RheoscopeError(Message("there is no file {path}", path=str(path))) from error
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise RheoscopeError(
            Message("{path} is not an image that Pillow can open; choose a PNG or JPEG file", path=str(path))
        ) from error


def process_image(image: Any, processor: Any, network_name: str, **options: Any) -> Mapping[str, Tensor]:
    """What the processor of a model makes of an image."""
    if processor is None:
        raise RheoscopeError(
            Message(
                "{network} has no image processor, expected preprocessor_config.json in the directory of its weights",
                network=network_name,
            ),
            Advice("model.trace(pixels)"),
        )
    inputs: Mapping[str, Tensor] = processor(images=image.convert("RGB"), return_tensors="pt", **options)
    return inputs
