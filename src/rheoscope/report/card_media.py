"""The images or sounds of a card, in place of texts: the files of a directory, and their features in batches of one size."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from torch import Tensor

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.report.input_media import IMAGE_INPUTS, SOUND_INPUTS, ImageFile, Medium, SoundFile
from rheoscope.running.pair_sides import one_text_model
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError

MIN_MEDIA = 4
"""The smallest number of images or sounds. Fewer have no interval."""
IMAGES, SOUNDS = Message("images"), Message("sounds")


def media_unit(facts: Mapping[Any, Any]) -> Message | None:
    """What a model reads in place of texts: images or sounds. None if it reads texts."""
    return {**dict.fromkeys(IMAGE_INPUTS, IMAGES), **dict.fromkeys(SOUND_INPUTS, SOUNDS)}.get(facts.get("input", ""))


def media_advice(facts: Mapping[Any, Any]) -> Advice:
    """How to give a card its images or sounds."""
    name, option = ("b.png", "--images") if facts.get("input") in IMAGE_INPUTS else ("b.wav", "--audio")
    return Advice(f"rs.card(model, [Path({name!r}), …])", f"{option} DIR")


def media_files(folder: Path, medium: type[Medium]) -> list[Medium]:
    """The files of a directory, in the order of their names. Raises unless each of them is an image, or a sound."""
    if not folder.is_dir():
        raise RheoscopeError(Message("{path} is no directory of files", path=str(folder)))
    files = [medium(path) for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]
    if len(files) < MIN_MEDIA:
        raise RheoscopeError(
            Message(
                "a card needs at least {low} files, but {path} has {n}", low=MIN_MEDIA, path=str(folder), n=len(files)
            )
        )
    for file in files:
        file.check()
    return files


def read_media(images: Path | None, sounds: Path | None) -> list[Medium]:
    """The files of --images or --audio."""
    if images is not None:
        return media_files(images, ImageFile)
    return [] if sounds is None else media_files(sounds, SoundFile)


def model_of_media(model: RunnableModel, files: Sequence[Medium]) -> RunnableModel:
    """The model of one cloud that reads these files: the model itself, or the encoder of an encoder-decoder."""
    reader = one_text_model(model)
    for file in files:
        if reader.view.facts.get("input") not in file.inputs:
            raise file.refusal(model)
    return reader


def features_of(model: Any, sources: Sequence[Any]) -> list[Tensor]:
    """The features of the images or sounds of a card. Refuses fewer than four."""
    unit = media_unit(model.view.facts)
    if len(sources) < MIN_MEDIA:
        raise RheoscopeError(
            Message("a card needs at least {low} {unit}, got {n}", low=MIN_MEDIA, unit=unit, n=len(sources)),
            media_advice(model.view.facts),
        )
    return [model.features(source) for source in sources]


def batches_of_one_size(features: Sequence[Tensor], limit: int) -> list[range]:
    """Ranges of inputs that follow each other and have one size, of at most `limit` inputs each."""
    ranges = []
    for _, group in groupby(range(len(features)), key=lambda index: features[index].shape):
        indices = list(group)
        ranges += [range(i, min(i + limit, indices[-1] + 1)) for i in range(indices[0], indices[-1] + 1, limit)]
    return ranges
