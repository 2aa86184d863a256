"""The image of a command: checked before the model is loaded, and only given to a model of images."""

from pathlib import Path

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError

IMAGE_INPUT = "pixel_values"


def check_image(path: Path) -> None:
    """Raise if a file is not an image."""
    from rheoscope.pretrained.image_files import open_image

    open_image(path)


def image_of_model(model: RunnableModel, path: Path) -> Path:
    """The image of a command for this model. Raises if the model does not read images."""
    if model.view.facts.get("input") != IMAGE_INPUT:
        raise RheoscopeError(
            Message("{model} reads no images; give it a text, or choose a model of images", model=model.view.name),
            Advice("", f"--image {path} --model google/vit-base-patch16-224"),
        )
    return path
