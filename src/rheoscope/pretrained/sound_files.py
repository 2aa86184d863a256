"""Sound files as samples and as the features that a network reads: uncompressed WAV files, prepared by its feature extractor."""

import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

COMMON_RATE = 16_000
"""The samples per second that most models of sounds expect."""
INTEGERS = {2: torch.int16, 4: torch.int32}
"""Bytes of a sample → its type."""


def check_sound(path: Path) -> None:
    """Raise if a file is no uncompressed WAV file."""
    with open_wave(path, COMMON_RATE):
        pass


@contextmanager
def open_wave(path: Path, rate: int) -> Iterator[wave.Wave_read]:
    """A WAV file for reading. Its errors name the sampling rate that the model expects."""
    try:
        with wave.open(str(path), "rb") as file:
            yield file
    except FileNotFoundError as error:
        raise RheoscopeError(Message("there is no file {path}", path=str(path))) from error
    except (wave.Error, EOFError, OSError) as error:
        raise RheoscopeError(
            Message("{path} is not an uncompressed WAV file", path=str(path)),
            Advice("", f"ffmpeg -i {path} -ac 1 -ar {rate} -c:a pcm_s16le sound.wav"),
        ) from error


def open_sound(path: Path, rate: int) -> Float[Tensor, " n"]:
    """The samples of a WAV file from -1 to 1, as the mean of its channels. Raises if it has another sampling rate."""
    with open_wave(path, rate) as file:
        n_bytes, n_channels, own_rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
        frames = bytearray(file.readframes(file.getnframes()))
    if own_rate != rate or n_bytes not in INTEGERS or not frames:
        raise RheoscopeError(
            Message(
                "{path} has {rate} samples per second of {bits} bits, expected {expected} samples per second of 16 or 32 bits",
                path=str(path),
                rate=own_rate,
                bits=8 * n_bytes,
                expected=rate,
            ),
            Advice("", f"ffmpeg -i {path} -ac 1 -ar {rate} -c:a pcm_s16le sound.wav"),
        )
    samples = torch.frombuffer(frames, dtype=INTEGERS[n_bytes]).double() / 2 ** (8 * n_bytes - 1)
    return samples.reshape(-1, n_channels).mean(-1).float()


def process_sound(path: Path, extractor: Any, input_name: str, network_name: str) -> Float[Tensor, "*size"]:
    """The features of a sound file, by the feature extractor of a model."""
    if extractor is None:
        raise RheoscopeError(
            Message(
                "{network} has no feature extractor, expected preprocessor_config.json in the directory of its weights",
                network=network_name,
            ),
            Advice("model.trace(features)"),
        )
    rate = int(extractor.sampling_rate)
    samples = open_sound(path, rate).numpy()
    return extractor(samples, sampling_rate=rate, return_tensors="pt")[input_name][0]
