"""The image or the sound of a command: checked before the model is loaded, and only given to a model that reads it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, ClassVar

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.running.pair_sides import one_text_model, sides_for
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError

IMAGE_INPUTS, SOUND_INPUTS = ("pixel_values",), ("input_features", "input_values")
"""What networks call the pixels of an image, and the spectrum or the samples of a sound."""


@dataclass(frozen=True)
class Medium(ABC):
    """A file that a command reads in place of a text, and the option that names it."""

    path: Path
    option: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]]

    @abstractmethod
    def check(self) -> None:
        """Raise if the file is not what its option says."""

    @abstractmethod
    def refusal(self, model: RunnableModel) -> RheoscopeError:
        """The error for a model that does not read such files."""

    def sides(self, model: RunnableModel, target: str | None) -> tuple[RunnableModel, Any]:
        """What a command analyses: the model or its encoder and the file, or the decoder and the target."""
        if one_text_model(model).view.facts.get("input") not in self.inputs:
            raise self.refusal(model)
        return sides_for(model, self.path, target)


class ImageFile(Medium):
    """The file of `--image`."""

    option, inputs = "--image", IMAGE_INPUTS

    def check(self) -> None:
        from rheoscope.pretrained.image_files import open_image

        open_image(self.path)

    def refusal(self, model: RunnableModel) -> RheoscopeError:
        tower = _tower_of(model, self.inputs)
        if tower is not None:
            return RheoscopeError(
                Message("{model} reads texts without images; choose its vision tower", model=model.view.name),
                Advice("", f"--image {self.path} --model {quote(tower)}"),
            )
        return RheoscopeError(
            Message("{model} reads no images; give it a text, or choose a model of images", model=model.view.name),
            Advice("", f"--image {self.path} --model google/vit-base-patch16-224"),
        )


def _tower_of(model: RunnableModel, inputs: tuple[str, ...]) -> str | None:
    """The name of the tower of a network that reads these inputs."""
    from rheoscope.pretrained.network_inputs import main_input
    from rheoscope.pretrained.towers import TOWER_MARK, find_towers

    network = model.network
    towers = find_towers(network) if hasattr(network, "base_model") else {}
    names = [name for name, tower in towers.items() if main_input(tower) in inputs]
    return f"{model.view.facts['model']}{TOWER_MARK}{names[0]}" if names else None


class SoundFile(Medium):
    """The file of `--audio`."""

    option, inputs = "--audio", SOUND_INPUTS

    def check(self) -> None:
        from rheoscope.pretrained.sound_files import check_sound

        check_sound(self.path)

    def refusal(self, model: RunnableModel) -> RheoscopeError:
        return RheoscopeError(
            Message("{model} reads no sounds; give it a text, or choose a model of sounds", model=model.view.name),
            Advice("", f"--audio {self.path} --model facebook/wav2vec2-base"),
        )


def media_of(image: Path | None, audio: Path | None) -> list[Medium]:
    """The files that take the place of the text: none, one, or two that exclude each other."""
    files = [None if image is None else ImageFile(image), None if audio is None else SoundFile(audio)]
    return [file for file in files if file is not None]
